// How fast the lent dense product is: measured, since nothing else tells (a vendor's fp16 can run at 6 % of
// the machine).
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Flops per second of executor.gemm at this problem's shape, all threads together; 0 when it lends none.
/// Measured once per callback, dtype, direction, threads and shape rounded to powers of two, at most 512 x
/// 2048 x 2048; a GEMM so slow that this would take long is measured on a smaller one. Some ten milliseconds
/// in all, by any GEMM of 0.1 Gflop/s or more.
double gemm_rate(const Problem& problem, const Executor& executor);

}  // namespace sparseloom::ops
