// Copies of elements that depend only on the size of the dtype, and sizes of weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "sparseloom/dtype.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::layout {

/// Whether a weight may have this many rows or columns: sizes of its index can then be multiplied in 64 bits.
constexpr bool countable(std::int64_t size) noexcept {
  return size >= 0 && size <= std::numeric_limits<std::int32_t>::max();
}

/// Calls f with a zero of the unsigned type that is as wide as the dtype.
template <class F>
auto with_word(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

/// Layout's unpack (layout_concept.h) for layouts that list the stored elements of a row one by one.
template <class L>
void unpack_rows(const typename L::View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end) {
  with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    const W* const from = static_cast<const W*>(values);
    for (std::int64_t row = begin; row < end; ++row) {
      W* const to = static_cast<W*>(dense.data) + row * dense.stride;
      std::fill_n(to, L::cols(w), W{0});
      L::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) { to[col] = from[slot]; });
    }
  });
}

}  // namespace sparseloom::layout
