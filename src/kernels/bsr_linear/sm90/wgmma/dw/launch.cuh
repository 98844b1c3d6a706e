// The host side of wgmma::dw: it picks the tile, encodes the tensor maps, and launches the kernel.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/host.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/instances.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const Operands& operands, int grid) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  params.stage_bytes = T::stage_bytes(strips_of(params.most_blocks, args.index.block.cols));
  params.stages = std::min(T::kMostStages, kRingBytes / params.stage_bytes);
  if (const cudaError_t status = allow_shared_memory<wgmma_dw_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  if (!encode_tensor_map(params.dy, operands.dy, T::Element::box(T::kStep, T::kDyBoxColumns)) ||
      !encode_tensor_map(params.x, operands.x, T::Element::box(T::kStep, T::kBoxColumns))) {
    return cudaErrorInvalidValue;
  }
  wgmma_dw_kernel<T>
      <<<static_cast<unsigned>(grid), T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(
          params);
  return cudaGetLastError();
}

template <class Element, int kRows, bool kAccumulate>
int launch_rows(Params& params, const MatmulArgs& args, const Operands& operands, int grid) noexcept {
  switch (args.index.block.cols) {
    case 32: return launch_tile<Tile<Element, kRows, 32, kAccumulate>>(params, args, operands, grid);
    case 64:
    case 128: return launch_tile<Tile<Element, kRows, 64, kAccumulate>>(params, args, operands, grid);
    default: return cudaErrorInvalidValue;
  }
}

template <class Element, bool kAccumulate>
int launch_rows(Params& params, const MatmulArgs& args, const Operands& operands, int grid) noexcept {
  switch (args.index.block.rows) {
    case 32: return launch_rows<Element, 32, kAccumulate>(params, args, operands, grid);
    case 64: return launch_rows<Element, 64, kAccumulate>(params, args, operands, grid);
    case 128: return launch_rows<Element, 128, kAccumulate>(params, args, operands, grid);
    default: return cudaErrorInvalidValue;
  }
}

/// Launches the product. `operands` have Element's layout; `workspace` is for the partial sums.
template <class Element>
int launch(const MatmulArgs& args, const Operands& operands, std::byte* workspace, int most_blocks) noexcept {
  const IndexView& index = args.index;
  if (!tensor_map_possible(operands.dy) || !tensor_map_possible(operands.x) || !out_possible(args))
    return cudaErrorInvalidValue;
  const Size size = size_of_product(Element::kStep, index.block, index.block_rows(), index.blocks, args.m,
                                    runtime::cuda_device(args.device).multiprocessors);
  Params params{};
  params.crow = index.crow;
  params.col = index.col;
  params.out = args.out;
  params.rows = static_cast<std::int32_t>(index.rows);
  params.cols = static_cast<std::int32_t>(index.cols);
  params.block_rows = static_cast<std::int32_t>(index.block_rows());
  params.steps = size.steps;
  params.bn_log2 = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.most_blocks = most_blocks;
  params.part_chunks = chunks_of(index.block.rows, strips_of(params.most_blocks, index.block.cols));
  params.parts = reinterpret_cast<float4*>(workspace);
  params.flags =
      reinterpret_cast<std::uint64_t*>(workspace + size.grid * part_bytes(size, params.most_blocks));
  params.nonce = next_nonce();
  params.ragged = index.rows % index.block.rows != 0 || index.cols % index.block.cols != 0;
  return args.accumulate ? launch_rows<Element, true>(params, args, operands, size.grid)
                         : launch_rows<Element, false>(params, args, operands, size.grid);
}

/// Launches the product of 16-bit operands, which are read where the caller has them.
template <class Element>
int launch(const MatmulArgs& args, int most_blocks) noexcept {
  const Operands operands{{args.a, args.dtype, args.m, args.index.rows, args.a_stride * 2},
                          {args.b, args.dtype, args.m, args.index.cols, args.b_stride * 2}};
  return launch<Element>(args, operands, args.workspace, most_blocks);
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
