// Parallel loops over the threads that a caller lends in an Executor.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "sparseloom/executor.h"

namespace sparseloom::runtime {

/// The executor, or one with only the calling thread if a second thread, which has half of the work, would
/// save less time than it takes to start: a fork of some 5 us (an estimate) and the threads' delay. `us`:
/// microseconds of the work on one thread.
inline Executor if_worth_it(Executor executor, double us) noexcept {
  constexpr double kForkUs = 5;
  if (us / 2 <= kForkUs + executor.late_us) executor.parallel_for = nullptr, executor.num_threads = 1;
  return executor;
}

/// Calls body(begin, end) for each range of a partition of [0, count) on the executor's threads. It calls
/// inline if the executor lends no threads or there is one index. Allocates nothing. body must not throw.
template <class Body>
void parallel_for(const Executor& executor, std::int64_t count, Body&& body) {
  if (count <= 0) return;
  if (executor.parallel_for == nullptr || executor.num_threads <= 1 || count == 1) {
    body(std::int64_t{0}, count);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  auto call = [](void* self, std::int64_t begin, std::int64_t end) {
    (*static_cast<Plain*>(self))(begin, end);
  };
  executor.parallel_for(executor.context, count,
                        RangeBody{call, const_cast<void*>(static_cast<const void*>(std::addressof(body)))});
}

/// Calls body(task) for every task in [0, tasks), each on one thread. Otherwise as parallel_for.
template <class Body>
void parallel_tasks(const Executor& executor, std::int64_t tasks, const Body& body) {
  parallel_for(executor, tasks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) body(task);
  });
}

}  // namespace sparseloom::runtime
