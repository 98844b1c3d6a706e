// Host side of wgmma_conv_dw: it picks the tile, encodes the tensor maps, and launches the kernel.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_conv/sm90/dw_wgmma/kernel.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/host.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_conv_dw {

template <class T>
int launch_tile(Params& params, const MatmulArgs& args, const PixelTensor& x, int grid) noexcept {
  constexpr int kSharedBytes = sizeof(wgmma::dw::SharedStorage<T>);
  params.stage_bytes = T::stage_bytes(wgmma::dw::strips_of(params.most_blocks, args.index.block.cols));
  params.stages = std::min(T::kMostStages, wgmma::dw::kRingBytes / params.stage_bytes);
  if (const cudaError_t status = allow_shared_memory<wgmma_conv_dw_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  const TensorMapMatrix dy{args.a, args.dtype, args.m, args.index.rows, args.a_stride * 2};
  constexpr std::int64_t kMostChannels = std::int64_t{T::kBoxColumns} << 16;  // limit of BoxPlace
  if (!tensor_map_possible(dy) || !pixel_map_possible(x) || x.channels > kMostChannels ||
      !encode_tensor_map(params.dy, dy, T::Element::box(T::kStep, T::kDyBoxColumns)) ||
      !encode_pixel_map(params.x, x, T::kStep.tokens, T::kBoxColumns))
    return cudaErrorInvalidValue;
  wgmma_conv_dw_kernel<T>
      <<<static_cast<unsigned>(grid), T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(
          params);
  return cudaGetLastError();
}

/// Square blocks only: each instance takes seconds to compile.
template <class Element, bool kAccumulate>
int launch_side(Params& params, const MatmulArgs& args, const PixelTensor& x, int grid) noexcept {
  if (args.index.block.rows != args.index.block.cols) return cudaErrorInvalidValue;
  switch (args.index.block.rows) {
    case 32: return launch_tile<wgmma::dw::Tile<Element, 32, 32, kAccumulate>>(params, args, x, grid);
    case 64: return launch_tile<wgmma::dw::Tile<Element, 64, 64, kAccumulate>>(params, args, x, grid);
    case 128: return launch_tile<wgmma::dw::Tile<Element, 128, 64, kAccumulate>>(params, args, x, grid);
    default: return cudaErrorInvalidValue;
  }
}

template <class Element>
int launch(const MatmulArgs& args, const conv::Shape& shape, int most_blocks) noexcept {
  const IndexView& index = args.index;
  if (!wgmma::dw::out_possible(args)) return cudaErrorInvalidValue;
  PixelTensor x = wgmma_conv::pixel_tensor(shape, false);
  x.data = args.b;
  x.dtype = args.dtype;
  x.channels = index.cols;
  x.stride_bytes = args.b_stride * 2;
  const wgmma::dw::Size size =
      wgmma::dw::size_of_product(Element::kStep, index.block, index.block_rows(), index.blocks * shape.taps(),
                                 args.m, runtime::cuda_device(args.device).multiprocessors);
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
  params.part_chunks =
      wgmma::dw::chunks_of(index.block.rows, wgmma::dw::strips_of(most_blocks, index.block.cols));
  params.parts = reinterpret_cast<float4*>(args.workspace);
  params.flags =
      reinterpret_cast<std::uint64_t*>(args.workspace + size.grid * wgmma::dw::part_bytes(size, most_blocks));
  params.nonce = wgmma::dw::next_nonce();
  params.ragged = index.rows % index.block.rows != 0 || index.cols % index.block.cols != 0;
  params.walk = wgmma_conv::pixel_walk(shape, false, x.deep);
  return args.accumulate ? launch_side<Element, true>(params, args, x, size.grid)
                         : launch_side<Element, false>(params, args, x, size.grid);
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv_dw
