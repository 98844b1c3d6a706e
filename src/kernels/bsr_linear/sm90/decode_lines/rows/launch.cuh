// Host side of sm90_decode_lines: looks up the instance that a schedule names, and launches it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/element.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/host.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/rows/glu.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/rows/narrow.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/rows/wide.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/launch.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Prefetches 9 MB of W over all strips, but at most 24 KB per strip, in one request per warp. 8 KB per strip
/// measured slower at densities up to .2.
template <class C>
Guess guess_of(const Params& params, std::int64_t strips, int warps) {
  const int bytes = static_cast<int>(std::min<std::int64_t>(24576, (std::int64_t{9} << 20) / strips));
  const int unit_bytes = C::kRows * 2 << params.bn_log2;
  Guess guess;
  guess.row_blocks_32 =
      (static_cast<std::uint64_t>(params.blocks) << 32) / static_cast<std::uint64_t>(params.block_rows);
  const auto row_blocks = static_cast<int>(guess.row_blocks_32 >> 32);
  // If a block row has several strips, a strip's units of two blocks are not contiguous.
  guess.units = params.strips_log2 > 0 ? 1 : std::max(1, std::min(bytes / unit_bytes, row_blocks) / warps);
  guess.warps = std::min({warps, bytes / (guess.units * unit_bytes), std::max(row_blocks, 1)});
  return guess;
}

/// args.glu: `params` are those of the gates.
template <class C, template <class> class Walk>
int launch_glu(const Params& params, const Params& factors, const Schedule& schedule,
               const MatmulArgs& args) noexcept {
  constexpr auto kKernel = &decode_lines_glu_kernel<C, Walk>;
  constexpr int kWarpBytes = C::kWarpBytes + 8 * C::kStages;
  const int warps = schedule.warps;
  if (args.m > 8 * C::kTokenTiles || schedule.tiles_at_once != 2 || warps < 1 || 2 * warps > C::kWarps)
    return cudaErrorInvalidValue;
  if (const cudaError_t status = allow_shared_memory<kKernel>(C::kWarps * kWarpBytes, args.device);
      status != cudaSuccess)
    return status;
  const std::int64_t strips = std::int64_t{params.block_rows} << params.strips_log2;
  return launch_kernel(
      {.grid = static_cast<unsigned>(strips),
       .block = dim3(static_cast<unsigned>(32 * warps), 2),
       .shared_bytes = static_cast<std::size_t>(2 * warps * kWarpBytes),
       .stream = static_cast<cudaStream_t>(args.stream),
       .early = true},
      kKernel,
      Pair{{params, factors}, {guess_of<C>(params, strips, warps), guess_of<C>(factors, strips, warps)}});
}

template <class C, template <class> class Walk>
int launch_instance(const Params& params, const Schedule& schedule, const MatmulArgs& args,
                    const Params* factors) noexcept {
  if (factors != nullptr) {
    if constexpr (8 * C::kTokenTiles <= kGluTokens && C::kRows == kStrip)
      return launch_glu<C, Walk>(params, *factors, schedule, args);
    else
      return cudaErrorInvalidValue;
  }
  constexpr auto kKernel = &decode_lines_rows_kernel<C, Walk>;
  constexpr int kWarpBytes = C::kWarpBytes + 8 * C::kStages;
  const int at_once = schedule.tiles_at_once, warps = schedule.warps;
  // The kernel would omit tokens past the tile.
  if (args.m > 8 * C::kTokenTiles || at_once < 1 || warps < 1 || at_once * warps > C::kWarps)
    return cudaErrorInvalidValue;
  if (const cudaError_t status = allow_shared_memory<kKernel>(C::kWarps * kWarpBytes, args.device);
      status != cudaSuccess)
    return status;
  const std::int64_t strips = std::int64_t{params.block_rows} << params.strips_log2;
  return launch_kernel({.grid = static_cast<unsigned>(ceil_div(strips, at_once)),
                        .block = dim3(static_cast<unsigned>(32 * warps), static_cast<unsigned>(at_once)),
                        .shared_bytes = static_cast<std::size_t>(at_once * warps * kWarpBytes),
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true},
                       kKernel, params, guess_of<C>(params, strips, warps));
}

template <class Mma, bool kWide>
int launch_tokens(const Params& params, const Schedule& schedule, const MatmulArgs& args,
                  const Params* factors) noexcept {
  if (schedule.tile_n != kStrip || schedule.tile_k != (kWide ? 64 : 32)) return cudaErrorInvalidValue;
  switch (schedule.tile_m) {
    case 8: return launch_instance<Config<Mma, kWide, 1>, WideWalk>(params, schedule, args, factors);
    case 16: return launch_instance<Config<Mma, kWide, 2>, WideWalk>(params, schedule, args, factors);
    case 32: return launch_instance<Config<Mma, kWide, 4>, WideWalk>(params, schedule, args, factors);
    case 64: return launch_instance<Config<Mma, kWide, 8>, WideWalk>(params, schedule, args, factors);
    default: return cudaErrorInvalidValue;
  }
}

template <class Mma>
int launch_narrow(const Params& params, const Schedule& schedule, const MatmulArgs& args,
                  const Params* factors) noexcept {
  if (schedule.tile_n != kSide || schedule.tile_k != kSide) return cudaErrorInvalidValue;
  switch (schedule.tile_m) {
    case 8: return launch_instance<NarrowConfig<Mma, 1>, NarrowWalk>(params, schedule, args, factors);
    case 16: return launch_instance<NarrowConfig<Mma, 2>, NarrowWalk>(params, schedule, args, factors);
    case 32: return launch_instance<NarrowConfig<Mma, 4>, NarrowWalk>(params, schedule, args, factors);
    default: return cudaErrorInvalidValue;
  }
}

/// Makes the tensor map of W for wide blocks.
inline bool encode_values(CUtensorMap& map, const MatmulArgs& args) {
  const BlockShape block = args.index.block;
  return block.cols <= 32 ||
         encode_tensor_map(
             map, {args.values, args.dtype, args.index.blocks * block.rows, block.cols, block.cols * 2},
             {kStrip, 64, 128});
}

template <class Mma>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  Params params{}, factors{};
  if (index.cols % 8 != 0 || !fill(params, args)) return cudaErrorInvalidValue;
  if (schedule.method == Method::decode_x_streamed)
    return index.block == BlockShape{kSide, kSide} && !args.glu
               ? x_streamed::launch<Mma>(params, schedule, args)
               : cudaErrorInvalidValue;
  if (schedule.method != Method::decode_rows || !encode_values(params.w, args)) return cudaErrorInvalidValue;
  if (args.glu) {
    MatmulArgs of_factors = args;
    of_factors.index = args.factor_index, of_factors.values = args.factor_values;
    of_factors.bias = args.factor_bias;
    if (!fill(factors, of_factors) || !encode_values(factors.w, of_factors)) return cudaErrorInvalidValue;
  }
  const Params* const second = args.glu ? &factors : nullptr;
  if (index.block.cols == 16) return launch_narrow<Mma>(params, schedule, args, second);
  return index.block.cols == 32 ? launch_tokens<Mma, false>(params, schedule, args, second)
                                : launch_tokens<Mma, true>(params, schedule, args, second);
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
