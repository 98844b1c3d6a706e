// How fast the lent dense product is: measured, since nothing else tells (a vendor's fp16 can run at 6 % of the machine).
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Flops per second of executor.gemm at this problem's shape, all threads together; 0 when it lends none. Measured on a product of
/// at most 512 x 2048 x 2048 (tens of milliseconds, once per callback, dtype, direction, threads and rounded shape), then cached.
double gemm_rate(const Problem& problem, const Executor& executor);

}  // namespace sparseloom::ops
