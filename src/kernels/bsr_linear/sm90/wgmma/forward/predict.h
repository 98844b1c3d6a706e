// Predicted time of forward and dX by wgmma, in microseconds; `narrow` is which tiles.
#pragma once

#include "kernels/shared/cost/cost_terms.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// Of f16 and bf16. Blocks below 32 on a side are merged into units first.
double predict_16_bit_us(const Problem& problem, const Device& device, bool narrow);

/// Of f32 (TF32) and 8-bit operands. `out_size`: bytes of an output; `promotes`: 8-bit sums are added up in
/// fp32.
double predict_32_and_8_bit_us(const Problem& problem, const Device& device, bool narrow, double out_size,
                               bool promotes);

}  // namespace sparseloom::kernels::cuda::wgmma::forward
