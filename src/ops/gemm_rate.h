// The rate of the dense product that an executor lends. It is measured, because it cannot be derived: a
// vendor's fp16 product can run at a small fraction of the machine's peak.
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// Flops per second of executor.gemm at this problem's shape, all threads together; 0 if there is no GEMM.
/// Measured once per callback, dtype, direction, number of threads and shape, with the shape rounded down to
/// powers of two and to at most 512 x 2048 x 2048. A GEMM so slow that this would take long is measured on a
/// smaller shape. The measurement takes some ten milliseconds for any GEMM of 0.1 Gflop/s or more; one that
/// other work disturbed is taken again later (measured_rate.h).
double gemm_rate(const Problem& problem, const Executor& executor);

}  // namespace sparseloom::ops
