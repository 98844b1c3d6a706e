// The choices and the predicted time of the rows that compute dW by wgmma (sm90_wgmma, sm90_wgmma_narrow,
// sm90_split).
#pragma once

#include <cstddef>

#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// The size of a problem with at least one stored block.
Size size_of_problem(const Problem& problem, const StepShape& step, int multiprocessors);

/// Whether to use block rows or regions, and their size. way.exists() is false if neither method supports the
/// block sides or, with blocks of 16, the number of block rows. `narrow` chooses smaller items or regions.
Way way_of(const Problem& problem, const StepShape& step, int multiprocessors, bool narrow);

/// The schedule of an existing way: tile_m x tile_n is an item of block rows, or a region.
Schedule schedule_of(const Problem& problem, const StepShape& step, const Way& way);

/// Bytes of workspace: what a pass prepares of operands of fp32 (f32_space.h), then the partial sums of cut
/// items.
std::size_t workspace_of(const Problem& problem, const StepShape& step, int multiprocessors, const Way& way);

/// Predicted microseconds: the larger of the work items' time and the DRAM traffic's.
double predict_us(const Problem& problem, const Device& device, const StepShape& step, bool narrow);

}  // namespace sparseloom::kernels::cuda::wgmma::dw
