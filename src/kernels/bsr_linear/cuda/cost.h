// Predicted time of a call on a CUDA device. It follows from the problem, the device's clocks and widths, and
// what probes of the device reached; the plan ranks candidates by it.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

/// All predictions are in microseconds, with inputs outside L2. They use the problem's density; the positions
/// of the blocks do not matter.
double predict_wgmma_us(const Problem& problem, const plan::Machine& machine);
double predict_wgmma_narrow_us(const Problem& problem, const plan::Machine& machine);
/// Assumes as many units as blocks that lie at random fall into.
double predict_merged_us(const Problem& problem, const plan::Machine& machine, bool narrow);
double predict_sm90_mma_us(const Problem& problem, const plan::Machine& machine);
/// The same assumption as in predict_merged_us.
double predict_sm90_mma_merged_us(const Problem& problem, const plan::Machine& machine);
double predict_bf16x3_us(const Problem& problem, const plan::Machine& machine, bool narrow);
double predict_mma_us(const Problem& problem, const plan::Machine& machine);
double predict_ffma_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_staged_us(const Problem& problem, const plan::Machine& machine);
double predict_hopper_decode_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_block_rows_us(const Problem& problem, const plan::Machine& machine);
/// The scatter of W (dW: the gather) and the vendor's dense product.
double predict_dense_us(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
