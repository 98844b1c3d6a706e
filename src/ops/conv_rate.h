// The rate of the dense convolution that an executor lends on the CPU. It is measured: fits to some shapes
// predicted half of the time of others (128 x 128 channels, kernels of 64 x 1).
#pragma once

#include "sparseloom/bsr_conv.h"
#include "sparseloom/executor.h"

namespace sparseloom::ops {

/// Flops per second of executor.conv at this fp32 problem's shape, all threads together, the lay-out of x and
/// y counted and that of W not; 0 if there is no convolution. Measured once per callback, direction, number
/// of threads and shape, with images and extents rounded down to powers of two, in some hundred milliseconds;
/// one that other work disturbed is taken again later (measured_rate.h).
double conv_rate(const bsr_conv::Problem& problem, const Executor& executor);

}  // namespace sparseloom::ops
