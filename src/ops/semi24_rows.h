// The division of work on the rows of a 2:4 weight among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "sparseloom/executor.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::ops {

/// Calls body(begin, end) for ranges of rows, on the executor's threads. Ranges begin at multiples of 32, so
/// that a tile of 4 x 4 is never split, and an executor may run tasks one by one.
template <class Body>
void for_rows(const Executor& executor, std::int64_t rows, const Body& body) {
  constexpr std::int64_t kRows = 32;
  runtime::parallel_tasks(executor, core::ceil_div(rows, kRows),
                          [&](std::int64_t task) { body(task * kRows, std::min((task + 1) * kRows, rows)); });
}

}  // namespace sparseloom::ops
