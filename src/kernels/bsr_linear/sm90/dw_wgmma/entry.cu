// Entry points of sm90_wgmma_sdd: they choose between block rows and regions, and the instance by dtype.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/dw_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/dw_wgmma/instances.h"
#include "kernels/bsr_linear/sm90/dw_wgmma_regions/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {
namespace {

using wgmma_sdd::Size;
using wgmma_sdd::Way;

Size size_of_problem(const Problem& p, int multiprocessors) {
  const wgmma_sdd::StepShape& step = p.dtype == DType::f32 ? wgmma_sdd::kStepTf32 : wgmma_sdd::kStep16;
  return wgmma_sdd::size_of_product(step, p.block, (p.rows + p.block.rows - 1) / p.block.rows, p.blocks, p.m,
                                    multiprocessors);
}

Way way_of(const Problem& p, const Size& size, bool narrow) {
  return choose_way(size, (p.rows + p.block.rows - 1) / p.block.rows,
                    (p.cols + p.block.cols - 1) / p.block.cols, narrow);
}

int launch(const MatmulArgs& args, bool narrow) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaErrorInvalidValue;
  if (args.dtype == DType::f32)
    return args.tf32 ? wgmma_sdd::dw_transposed(args) : cudaErrorInvalidValue;  // no rounding unasked
  const Size size =
      wgmma_sdd::size_of_product(wgmma_sdd::kStep16, index.block, index.block_rows(), index.blocks, args.m,
                                 runtime::cuda_device(args.device).multiprocessors);
  const Way way = choose_way(size, index.block_rows(), index.block_cols(), narrow);
  if (!way.exists()) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return way.by_regions ? wgmma_sdd::dw_region_bf16(args, way.regions)
                            : wgmma_sdd::dw_bf16(args, way.deal.most_blocks);
    case DType::f16:
      return way.by_regions ? wgmma_sdd::dw_region_f16(args, way.regions)
                            : wgmma_sdd::dw_f16(args, way.deal.most_blocks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

std::size_t sm90_wgmma_sdd_workspace(const Problem& p, int multiprocessors, bool narrow) noexcept {
  if (p.dtype == DType::f32) return wgmma_sdd::transposed_workspace(p, multiprocessors);
  const Size size = size_of_problem(p, multiprocessors);
  return wgmma_sdd::workspace_bytes(size, way_of(p, size, narrow));
}

bool sm90_wgmma_sdd_takes(const Problem& p, int multiprocessors, bool narrow) noexcept {
  return way_of(p, size_of_problem(p, multiprocessors), narrow).exists();
}

int sm90_wgmma_sdd(const MatmulArgs& args, bool narrow) noexcept {
  return args.direction == Direction::dw ? launch(args, narrow) : cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
