// The host side of wgmma/dw_regions: it encodes the tensor maps, passes the regions' sides, and launches the
// kernel.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/host.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/instances.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

template <class T>
int launch_region_tile(const RegionParams& params, const MatmulArgs& args, int grid) noexcept {
  constexpr int kSharedBytes = sizeof(RegionStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<wgmma_dw_regions_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  wgmma_dw_regions_kernel<T>
      <<<static_cast<unsigned>(grid), T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(
          params);
  return cudaGetLastError();
}

template <class Element, bool kAccumulate>
int launch_region_rows(const RegionParams& params, const MatmulArgs& args, int grid) noexcept {
  return args.index.block.rows == 32
             ? launch_region_tile<RegionTile<Element, 32, kAccumulate>>(params, args, grid)
             : launch_region_tile<RegionTile<Element, 16, kAccumulate>>(params, args, grid);
}

template <class Element>
int launch_region(const MatmulArgs& args, const Grid& regions) noexcept {
  const IndexView& index = args.index;
  const TensorMapMatrix dy{args.a, args.dtype, args.m, index.rows, args.a_stride * 2};
  const TensorMapMatrix x{args.b, args.dtype, args.m, index.cols, args.b_stride * 2};
  if (!tensor_map_possible(dy) || !tensor_map_possible(x) || !out_possible(args))
    return cudaErrorInvalidValue;
  const Size size = size_of_product(kStep16, index.block, index.block_rows(), index.blocks, args.m,
                                    runtime::cuda_device(args.device).multiprocessors);
  RegionParams params{};
  const TensorMapBox box{region_stage_tokens(index.block.rows), kBoxSide, kBoxSide * 2};
  if (!encode_tensor_map(params.dy, dy, box) || !encode_tensor_map(params.x, x, box))
    return cudaErrorInvalidValue;
  params.crow = index.crow;
  params.col = index.col;
  params.out = args.out;
  params.rows = static_cast<std::int32_t>(index.rows);
  params.cols = static_cast<std::int32_t>(index.cols);
  params.block_rows = static_cast<std::int32_t>(index.block_rows());
  params.steps = size.steps;
  params.bn_log2 = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.row_boxes = regions.row_boxes;
  params.column_boxes = regions.column_boxes;
  params.down = static_cast<std::int32_t>(regions.down);
  params.across = static_cast<std::int32_t>(regions.across);
  params.ragged = index.rows % index.block.rows != 0 || index.cols % index.block.cols != 0;
  params.part_chunks = region_chunks(size);
  params.parts = reinterpret_cast<float4*>(args.workspace);
  params.flags = reinterpret_cast<std::uint64_t*>(args.workspace + size.grid * region_part_bytes(size));
  params.nonce = next_nonce();
  return args.accumulate ? launch_region_rows<Element, true>(params, args, size.grid)
                         : launch_region_rows<Element, false>(params, args, size.grid);
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
