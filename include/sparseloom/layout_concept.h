// Layout: the functions of a weight's layout that the generic kernels need. A layout of your own includes
// only this header of the library; linear_of.h multiplies with it, and docs/add_a_layout.md shows one.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "sparseloom/error.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// A layout is a struct of static functions over a View, which borrows the index arrays of one matrix W
/// [rows, cols] and may be copied as bytes. The values lie in one array apart from the View; an element's
/// place in that array is its slot. A layout knows no operation and no dtype.
///
///   kId                                 its name, constexpr, which plans and refusals print
///   rows(view), cols(view)              out features and in features
///   stored(view)                        slots, padding included: the elements of the array of values
///   for_each_in_row(view, row, f)       calls f(col, slot) for each stored element of a row, never for
///                                       padding
///   unpack(view, values, dense, begin, end)
///                                       writes the rows [begin, end) of `dense` [rows, cols], which has the
///                                       dtype of the values: the stored elements and zero elsewhere. It
///                                       copies bytes and never multiplies, and writes nothing between rows.
///   validate(op, view)                  throws Error, in the name of the operation `op`, if the arrays are
///                                       no valid index
///
/// It may also have shape(view), an int64 of numbers of its own (the sides of its groups, say), which its
/// rows find in the problem; visit_ns(shape), the nanoseconds per slot of a for_each_in_row that searches,
/// for the prediction of `reference`; unpack_ns(shape), those that unpack takes besides writing W, for that
/// of `dense`; has_memory(view), whether all arrays that its sizes need exist, which is checked before each
/// product; and rows_at_once(view), the rows that one call of unpack writes best.
///
/// for_each_in_row visits each slot in exactly one row and a column at most once per row, in ascending order,
/// which is the order of every sum. Only validate may throw. All functions are called from several threads at
/// once, and only validate is called with a View that may be invalid.
template <class L>
concept Layout = std::is_trivially_copyable_v<typename L::View> &&
    requires(const typename L::View& view, const char* op, const void* values, const MatrixView& dense,
             std::int64_t row, void (*f)(std::int64_t col, std::int64_t slot)) {
  { L::kId } -> std::convertible_to<const char*>;
  { L::rows(view) } -> std::same_as<std::int64_t>;
  { L::cols(view) } -> std::same_as<std::int64_t>;
  { L::stored(view) } -> std::same_as<std::int64_t>;
  L::for_each_in_row(view, row, f);
  L::unpack(view, values, dense, row, row);
  L::validate(op, view);
};

/// A layout that also has a column index over the same values. for_each_in_col(view, transposed, col, f)
/// calls f(row, slot) for each stored element of a column, rows in ascending order.
template <class L>
concept TransposedLayout = Layout<L> && std::is_trivially_copyable_v<typename L::Transposed> &&
    requires(const typename L::View& view, const typename L::Transposed& transposed, std::int64_t col,
             void (*f)(std::int64_t row, std::int64_t slot)) {
  L::for_each_in_col(view, transposed, col, f);
};

}  // namespace sparseloom
