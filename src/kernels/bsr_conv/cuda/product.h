// The linear-layer product equivalent to a convolution: W [rows, taps cols] with one block per stored block
// and tap, and the pixels under all taps side by side as X. The rows predict by it.
#pragma once

#include "kernels/shared/cost/cost_terms.h"
#include "sparseloom/bsr_conv.h"

namespace sparseloom::kernels {

/// The time of the vendor's convolution. 0 and 0 if no kernel here competes with it: for fp32 without TF32,
/// or in a build without CUDA.
bsr_conv::DenseTime dense_conv_on_device(const bsr_conv::Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels

namespace sparseloom::kernels::cuda::conv_rows {

/// dX: W [taps rows, cols].
sparseloom::Problem product_of(const bsr_conv::Problem& problem);

/// Bytes of X (dX: of dY) that the product would read from DRAM in addition to the convolution's.
double repeated_bytes(const bsr_conv::Problem& problem);

}  // namespace sparseloom::kernels::cuda::conv_rows
