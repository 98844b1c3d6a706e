// The division of products with 2:4 weights into tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/claims.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Calls body(begin, end) for ranges of `units` equal shares of the outputs, on as many threads as the work
/// is worth. An output is computed by one thread, in an order that does not depend on the ranges. Before any
/// of them, pack(begin, end) has been called for ranges of [0, packed), by the same threads in the same
/// parallel region.
template <class Pack, class Body>
void for_units(const Semi24View& w, std::int64_t packed, std::int64_t units, const Executor& executor,
               const Pack& pack, const Body& body) {
  constexpr int kMostTasks = Parts::kMost / kPartsOfTask;
  const double elements = static_cast<double>(Semi24::stored(w) + w.rows + w.cols);
  const std::int64_t tasks = std::clamp<std::int64_t>(static_cast<std::int64_t>(elements / kTaskElements), 1,
                                                      std::clamp(executor.num_threads, 1, kMostTasks));
  const std::int64_t parts = tasks == 1 ? 1 : kPartsOfTask * tasks;
  Phase packing(packed > 0 ? parts : 0);
  Parts shared(parts, tasks);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    packing.work([&](std::int64_t part) {
      const Range range = share(packed, part, parts);
      if (range.begin < range.end) pack(range.begin, range.end);
    });
    packing.wait();
    shared.work(task, [&](std::int64_t part) {
      const Range range = share(units, part, parts);
      if (range.begin < range.end) body(range.begin, range.end);
    });
  });
}

/// Like the above if nothing is packed, or one thread has packed it.
template <class Body>
void for_units(const Semi24View& w, std::int64_t units, const Executor& executor, const Body& body) {
  for_units(
      w, 0, units, executor, [](std::int64_t, std::int64_t) {}, body);
}

}  // namespace sparseloom::kernels::cpu
