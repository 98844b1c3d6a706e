// Rates of this machine, by which rows from outside predict their times.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/plan.h"

namespace sparseloom {

/// Per second. Measured once for a machine and kept in a file, except `gemm_flops`.
struct Rates {
  double fma_flops = 0;   // fp32 flops of one core in registers, by the instruction set in force
  double copy_bytes = 0;  // bytes that one core reads and writes in a streaming copy larger than L2
  /// Flops of the dense product that the executor lends, at this product's shape, all threads together; 0: it
  /// lends none, or the product is not on the CPU. Measured once per process for each callback, dtype and
  /// rounded shape, which takes some ten milliseconds.
  double gemm_flops = 0;
};

/// The rates for a product with W [rows, cols] and m tokens on the executor's threads.
SPARSELOOM_API Rates rates_for(Direction direction, DType dtype, std::int64_t m, std::int64_t rows,
                               std::int64_t cols, const Executor& executor);

}  // namespace sparseloom
