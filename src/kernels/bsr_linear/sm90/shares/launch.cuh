// Host side of sm90_shares: fills the parameters, selects the instance that the schedule names and launches
// it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/sm90/shares/entry.h"
#include "kernels/bsr_linear/sm90/shares/kernel.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/host.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::shares {

inline bool aligned(const void* pointer, std::int64_t stride, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0 && stride * 2 % alignment == 0;
}

template <class C>
int launch_instance(Params params, const MatmulArgs& args) noexcept {
  constexpr auto kKernel = &shares_kernel<C>;
  const IndexView& index = args.index;
  const std::int64_t x_width = C::kDx ? index.rows : index.cols;
  const TensorMapMatrix x{args.a, args.dtype, args.m, x_width, args.a_stride * 2},
      w{args.values, args.dtype, index.blocks * index.block.rows, index.block.cols, index.block.cols * 2};
  const TensorMapBox w_box = C::kDx ? TensorMapBox{C::kPiece, C::kStrip, C::kStrip * 2}
                                    : TensorMapBox{C::kStrip, C::kPiece, C::kPiece * 2};
  if (!tensor_map_possible(x) || !tensor_map_possible(w) ||
      !encode_tensor_map(params.x, x, {params.tile_tokens, C::kPiece, C::kPiece * 2}) ||
      !encode_tensor_map(params.w, w, w_box))
    return cudaErrorInvalidValue;
  const auto tiles = static_cast<unsigned>((params.m - 1) / params.tile_tokens + 1);
  params.flags = reinterpret_cast<std::uint64_t*>(params.partials +
                                                  std::int64_t{tiles} * params.shares * C::kFragments * 32);
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

template <class Element, bool kDx, int kStrip, int kPiece>
int launch_piece(const Params& params, const MatmulArgs& args, int tokens) noexcept {
  switch (tokens) {
    case 32: return launch_instance<Config<Element, kDx, kStrip, kPiece, 32>>(params, args);
    case 64: return launch_instance<Config<Element, kDx, kStrip, kPiece, 64>>(params, args);
    case 128:
      if constexpr (kStrip <= 64)
        return launch_instance<Config<Element, kDx, kStrip, kPiece, 128>>(params, args);
      return cudaErrorInvalidValue;
    default: return cudaErrorInvalidValue;
  }
}

template <class Element, bool kDx, int kStrip>
int launch_strip(const Params& params, const MatmulArgs& args, int tokens) noexcept {
  return params.k_side_log2 == 5 ? launch_piece<Element, kDx, kStrip, 32>(params, args, tokens)
                                 : launch_piece<Element, kDx, kStrip, 64>(params, args, tokens);
}

template <class Element, bool kDx>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  const int side = kDx ? index.block.cols : index.block.rows,
            k_side = kDx ? index.block.rows : index.block.cols;
  const auto log2 = [](int side) { return std::countr_zero(static_cast<unsigned>(side)); };
  Params params{};
  params.values = args.values;
  params.list_begin = kDx ? args.transposed.ccol : index.crow;
  params.along = kDx ? args.transposed.row : index.col;
  params.slot = kDx ? args.transposed.slot : nullptr;
  params.bias = kDx ? nullptr : args.bias;
  params.residual = kDx ? nullptr : args.residual;
  params.out = args.out;
  params.pre = kDx ? nullptr : args.pre;
  params.partials = reinterpret_cast<float4*>(args.workspace);
  params.out_stride = args.out_stride;
  params.pre_stride = args.pre_stride;
  params.residual_stride = args.residual_stride;
  params.m = static_cast<int>(args.m);
  params.out_width = static_cast<int>(kDx ? index.cols : index.rows);
  params.block_rows = static_cast<int>(kDx ? index.block_cols() : index.block_rows());
  if (params.m == 0 || params.block_rows == 0) return cudaSuccess;
  params.shares = schedule.split_k;
  const int tiles = (params.m - 1) / schedule.tile_m + 1;
  params.tile_tokens = ((params.m - 1) / tiles / 16 + 1) * 16;  // tiles of nearly the same size
  params.side_log2 = log2(side);
  params.k_side_log2 = log2(k_side);
  params.strips_log2 = log2(side / schedule.tile_n);
  params.pieces_log2 = std::max(params.k_side_log2 - 6, 0);
  params.nonce = wgmma::dw::next_nonce();
  params.activation = kDx ? Activation::none : args.activation;
  params.store_pairs = aligned(args.out, args.out_stride, 4);
  params.store_pre_pairs = aligned(args.pre, args.pre_stride, 4);
  params.blocks = index.blocks;
  params.block_bytes = index.block_elements() * 2;
  if (k_side < 32) return cudaErrorInvalidValue;
  switch (schedule.tile_n) {
    case 32: return launch_strip<Element, kDx, 32>(params, args, schedule.tile_m);
    case 64: return launch_strip<Element, kDx, 64>(params, args, schedule.tile_m);
    case 128:
      if constexpr (!kDx) return launch_strip<Element, kDx, 128>(params, args, schedule.tile_m);
      return cudaErrorInvalidValue;
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::shares
