// What the rows that compute dW by wgmma (sm90_wgmma, sm90_wgmma_narrow, sm90_split) choose, and its
// predicted time.
#pragma once

#include <cstddef>

#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// The size of a problem, some of whose blocks are stored.
Size size_of_problem(const Problem& problem, const StepShape& step, int multiprocessors);

/// Block rows or regions, and their size. way.exists() is false where the block sides, or of blocks of 16 the
/// number of block rows, are not taken. `narrow` chooses smaller items or regions than usual.
Way way_of(const Problem& problem, const StepShape& step, int multiprocessors, bool narrow);

/// A way that exists, as a schedule: tile_m x tile_n is an item of block rows, or a region.
Schedule schedule_of(const Problem& problem, const StepShape& step, const Way& way);

/// Bytes of workspace: the partial sums of cut items, and before them what a pass prepares of operands of
/// fp32 (f32_space.h).
std::size_t workspace_of(const Problem& problem, const StepShape& step, int multiprocessors, const Way& way);

/// Microseconds: the time that is expected for the work items, or that of the memory
/// traffic if it is longer.
double predict_us(const Problem& problem, const Device& device, const StepShape& step, bool narrow);

}  // namespace sparseloom::kernels::cuda::wgmma::dw
