// Host side of sm90_expanded: fills the parameters and launches the instance that the schedule names.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/sm90/expanded/kernel.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/host.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::expanded {

using wgmma::forward::Bf16;
using wgmma::forward::F16;

inline bool whole_possible(const void* pointer, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

template <class C>
int launch_instance(Params params, const MatmulArgs& args) noexcept {
  constexpr auto kKernel = &expanded_kernel<C>;
  const TensorMapMatrix x{args.a, args.dtype, args.m, C::kDx ? args.index.rows : args.index.cols,
                          args.a_stride * 2};
  if (!tensor_map_possible(x) || !encode_tensor_map(params.x, x, {params.tile_tokens, kKTile, kKTile * 2}))
    return cudaErrorInvalidValue;
  const auto tiles = static_cast<unsigned>((params.m - 1) / params.tile_tokens + 1);
  params.flags = reinterpret_cast<std::uint64_t*>(params.partials + std::int64_t{tiles} * params.shares *
                                                                        kConsumerWarps * C::kFragments * 32);
  const cudaError_t allowed =
      allow_shared_memory<kKernel>(sizeof(Shared<C>), args.device, cudaSharedmemCarveoutMaxShared);
  if (allowed != cudaSuccess) return allowed;
  return launch_kernel({.grid = dim3(static_cast<unsigned>(params.shares), tiles),
                        .block = kThreads,
                        .shared_bytes = sizeof(Shared<C>),
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true},
                       kKernel, params);
}

template <class Element, bool kDx>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  const auto log2 = [](int side) { return std::countr_zero(static_cast<unsigned>(side)); };
  Params params{};
  params.values = static_cast<const uint4*>(args.values);
  params.list_begin = kDx ? args.transposed.ccol : index.crow;
  params.along = kDx ? args.transposed.row : index.col;
  params.slot = kDx ? args.transposed.slot : nullptr;
  params.bias = kDx ? nullptr : args.bias;
  params.residual = kDx ? nullptr : args.residual;
  params.out = args.out;
  params.pre = kDx ? nullptr : args.pre;
  params.partials = reinterpret_cast<float4*>(args.workspace);
  params.nonce = wgmma::dw::next_nonce();
  params.out_stride = args.out_stride;
  params.pre_stride = args.pre_stride;
  params.residual_stride = args.residual_stride;
  params.m = static_cast<int>(args.m);
  params.out_width = static_cast<int>(kDx ? index.cols : index.rows);
  params.block_rows = static_cast<int>(kDx ? index.block_cols() : index.block_rows());
  if (params.m == 0 || params.block_rows == 0) return cudaSuccess;
  const int depth = static_cast<int>(kDx ? index.rows : index.cols);
  params.out_tiles = (params.out_width - 1) / kTileOutputs + 1;
  params.k_tiles = (depth - 1) / kKTile + 1;
  params.shares = schedule.split_k;
  const int tiles = (params.m - 1) / schedule.tile_m + 1;
  params.tile_tokens = tile_tokens(params.m, tiles);
  params.side_log2 = log2(kDx ? index.block.cols : index.block.rows);
  params.k_side_log2 = log2(kDx ? index.block.rows : index.block.cols);
  params.activation = kDx ? Activation::none : args.activation;
  params.store_whole = whole_possible(args.out, args.out_stride);
  params.store_pre_whole = whole_possible(args.pre, args.pre_stride);
  params.plain = params.store_whole && params.out_width % 8 == 0 && params.residual == nullptr &&
                 params.pre == nullptr && params.activation == Activation::none;
  params.blocks = index.blocks;
  const bool sides =
      params.side_log2 >= 3 && params.side_log2 <= 6 && params.k_side_log2 >= 3 && params.k_side_log2 <= 6;
  if (!sides || params.k_tiles > kMostKTiles || params.out_tiles > kMostOutTiles || params.shares < 1 ||
      params.shares > kMostShares)
    return cudaErrorInvalidValue;
  switch (schedule.tile_m) {
    case 64: return launch_instance<Config<Element, kDx, 64>>(params, args);
    case 128: return launch_instance<Config<Element, kDx, 128>>(params, args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::expanded
