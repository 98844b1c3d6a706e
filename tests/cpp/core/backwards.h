// An executor that runs the ranges of a call in the order that nobody expects.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"

namespace sparseloom::testing {

/// Lends num_threads threads, but runs the ranges one after the other, last first.
inline Executor backwards(int num_threads) {
  Executor executor;
  executor.num_threads = num_threads;
  executor.parallel_for = [](void*, std::int64_t count, RangeBody body) {
    for (std::int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  return executor;
}

}  // namespace sparseloom::testing
