// Entry points of sm90_wgmma_dw: they select the instance by the schedule's method and by dtype.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/wgmma/dw/instances.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/entry.h"

namespace sparseloom::kernels::cuda {
namespace {

int by_regions(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const wgmma::dw::Grid grid = wgmma::dw::grid_of(schedule, args.index);
  if (grid.row_boxes == 0) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return wgmma::dw::dw_region_bf16(args, grid);
    case DType::f16: return wgmma::dw::dw_region_f16(args, grid);
    default: return cudaErrorInvalidValue;
  }
}

int by_block_rows(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.dtype == DType::f32)
    return args.tf32 ? wgmma::dw::dw_transposed(args, schedule)
                     : static_cast<int>(cudaErrorInvalidValue);  // TF32 rounds only if allowed
  const int most_blocks = wgmma::dw::most_blocks_of(schedule, wgmma::dw::kStep16, args.index.block);
  if (most_blocks == 0) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return wgmma::dw::dw_bf16(args, most_blocks);
    case DType::f16: return wgmma::dw::dw_f16(args, most_blocks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int sm90_wgmma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.direction != Direction::dw || args.index.blocks == 0) return cudaErrorInvalidValue;
  switch (schedule.method) {
    case Method::dw_wgmma: return by_block_rows(args, schedule);
    case Method::dw_wgmma_regions: return by_regions(args, schedule);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
