// The division of products with CSR weights: ranges of rows of equal cost. An output is computed by one
// thread, in an order that does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/csr.h"
#include "sparseloom/executor.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {

/// Cumulative cost over the rows of W, in stored elements; writing a row costs as much as some elements.
struct CsrCosts {
  const std::int32_t* crow;
  static constexpr std::int64_t kRowCost = 8;
  std::int64_t operator[](std::int64_t row) const { return crow[row] + row * kRowCost; }
};

/// The rows of range `part` of `parts`, cut at multiples of `multiple`.
inline Range rows_of_part(const CsrView& w, std::int64_t part, std::int64_t parts, std::int64_t multiple) {
  return units_of_part(CsrCosts{w.crow}, w.rows, 1, part, parts, multiple);
}

/// Vector steps worth waking a thread for: some 5 us.
inline constexpr double kCsrTaskSteps = 10e3;

/// Tasks worth starting for `w`'s stored elements, each multiplied by `vectors` vectors.
inline std::int64_t csr_tasks(const CsrView& w, std::int64_t vectors, const Executor& executor) {
  const double elements = static_cast<double>(w.stored + CsrCosts::kRowCost * w.rows + w.cols);
  return tasks_of(elements * static_cast<double>(vectors) / kCsrTaskSteps, executor);
}

/// Chunks of the rows of W that dX sums separately, so that threads need not wait for each other; they depend
/// on the problem alone. Adding them up must stay cheap beside the products.
inline std::int64_t dx_chunks(const CsrView& w, std::int64_t panels) {
  constexpr std::int64_t kItems = 16, kElementsOfSum = 8;
  const std::int64_t cheap = w.stored / std::max<std::int64_t>(1, kElementsOfSum * w.cols);
  return std::clamp<std::int64_t>(std::min(cheap, kItems / panels), 1, kItems);
}

/// Stored elements of a column, on average, that dX adds to its sum one after another; longer chains lose
/// precision. Setting the sums aside that often costs less than 1/200 of the products, and puts columns four
/// times as full as the average at 1024.
inline constexpr std::int64_t kColumnMean = 256;

/// Arrays of sums per chunk of dX's rows: a second one if its sums are set aside.
inline std::int64_t dx_sides(const CsrView& w, std::int64_t chunks) {
  return w.stored > chunks * kColumnMean * w.cols ? 2 : 1;
}

/// Calls body(item) for all items on as many threads as there are tasks; any task may take any item.
template <class Body>
void for_items(const Executor& executor, std::int64_t tasks, std::int64_t items, const Body& body) {
  Claims claims;
  runtime::parallel_tasks(executor, std::min(tasks, items), [&](std::int64_t) {
    for (std::int64_t item; (item = claims.take()) < items;) body(item);
  });
}

}  // namespace sparseloom::kernels::cpu
