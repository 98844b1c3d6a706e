// What a call on a CUDA device will take, from its problem, the device's clocks and widths and what probes of
// it reached: the plan ranks candidates by it.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

/// In microseconds, with inputs outside L2. Densities are those of the problem; how the blocks lie does not
/// enter.
double predict_wgmma_us(const Problem& problem, const plan::Machine& machine);
double predict_wgmma_narrow_us(const Problem& problem, const plan::Machine& machine);
/// With as many units as blocks that lie at random fall into.
double predict_merged_us(const Problem& problem, const plan::Machine& machine, bool narrow);
double predict_panel_us(const Problem& problem, const plan::Machine& machine);
/// As predict_merged_us.
double predict_merged_panel_us(const Problem& problem, const plan::Machine& machine);
double predict_split_us(const Problem& problem, const plan::Machine& machine, bool narrow);
double predict_mma_us(const Problem& problem, const plan::Machine& machine);
double predict_ffma_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_staged_us(const Problem& problem, const plan::Machine& machine);
double predict_hopper_decode_us(const Problem& problem, const plan::Machine& machine);
double predict_decode_lines_us(const Problem& problem, const plan::Machine& machine);
/// The scatter (dw: the gather) and the vendor's product.
double predict_dense_us(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
