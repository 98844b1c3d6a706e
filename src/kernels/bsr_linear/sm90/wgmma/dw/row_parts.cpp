// The division of a problem's dW into work items.
#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/f32_space.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

Size size_of_problem(const Problem& p, const StepShape& step, int multiprocessors) {
  return size_of_product(step, p.block, (p.rows + p.block.rows - 1) / p.block.rows, p.blocks, p.m,
                         multiprocessors);
}

Way way_of(const Problem& p, const StepShape& step, int multiprocessors, bool narrow) {
  return choose_way(size_of_problem(p, step, multiprocessors), (p.rows + p.block.rows - 1) / p.block.rows,
                    (p.cols + p.block.cols - 1) / p.block.cols, narrow);
}

Schedule schedule_of(const Problem& p, const StepShape& step, const Way& way) {
  Schedule schedule;
  if (way.by_regions) {
    schedule.method = Method::dw_wgmma_regions;
    schedule.tile_m = way.regions.row_boxes * kBoxSide, schedule.tile_n = way.regions.column_boxes * kBoxSide;
    schedule.tile_k = region_stage_tokens(p.block.rows);
  } else {
    schedule.method = Method::dw_wgmma;
    schedule.tile_m = p.block.rows, schedule.tile_n = way.deal.most_blocks * p.block.cols;
    schedule.tile_k = step.tokens;
  }
  return schedule;
}

std::size_t workspace_of(const Problem& p, const StepShape& step, int multiprocessors, const Way& way) {
  const Shape shape{p.m, p.rows, p.cols};
  const std::size_t prepared = p.dtype != DType::f32                   ? 0
                               : step.products == kStepBf16x3.products ? Bf16x3Space(shape).bytes()
                                                                       : TransposedSpace(shape).bytes();
  return prepared + workspace_bytes(size_of_problem(p, step, multiprocessors), way);
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw

#endif
