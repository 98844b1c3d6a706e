// The rows of this library for the verb bsr_conv, CUDA's and the CPU's. bsr_linear/cuda/rows.h has the
// contract of launches of CUDA rows.
#pragma once

#include <span>

#include "plan/machine.h"
#include "sparseloom/bsr_conv.h"

namespace sparseloom::kernels {

using ConvRow = Row<bsr_conv::Conv>;

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const ConvRow> conv_cuda_rows();

namespace cuda::conv_rows {

/// The first refusals of every row here: there must be pixels and channels, and 31 bits must count the
/// pixels.
Refusal refuse(const bsr_conv::Problem& problem);

ConvRow sm90_wgmma();
ConvRow sm90_wgmma_narrow();
ConvRow sm80_mma();

}  // namespace cuda::conv_rows

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const Row<bsr_conv::Conv>> conv_cpu_rows();

}  // namespace sparseloom::kernels
