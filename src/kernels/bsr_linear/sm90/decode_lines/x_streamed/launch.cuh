// Host side of kernel.cuh: looks up the instance that a schedule names, and launches it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/element.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/host.cuh"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::decode_lines::x_streamed {

template <class C>
int launch_instance(const Params& params, const Schedule& schedule, const MatmulArgs& args,
                    Cut& cut) noexcept {
  cut.strips = schedule.tiles_at_once, cut.warps = schedule.warps;
  if (cut.strips < 1 || cut.warps < 1 || cut.warps > 4 || cut.strips * cut.warps > C::kMostWarps)
    return cudaErrorInvalidValue;
  constexpr std::size_t kBytes = sizeof(SharedStorage<C>);
  static_assert(kBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<decode_lines_x_streamed_kernel<C>>(kBytes, args.device);
      status != cudaSuccess)
    return status;
  // With more than eight, the prefetches delay X (measured slower).
  cut.ahead =
      static_cast<int>(std::clamp<std::int64_t>(params.blocks / params.block_rows / 2 / cut.warps, 1, 8));
  return launch_kernel({.grid = static_cast<unsigned>(2 * ceil_div(params.block_rows, cut.strips)),
                        .block = static_cast<unsigned>(32 * (cut.strips * cut.warps + 1)),
                        .shared_bytes = kBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = 2},
                       decode_lines_x_streamed_kernel<C>, params, cut);
}

/// For blocks of 16 x 16.
template <class Mma>
int launch(const Params& params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  using Few = Config<Mma, kFewWarps, kFewStageBlocks>;
  using Many = Config<Mma, kMostStrips, kManyStageBlocks>;
  if (schedule.tile_m != kTokens || args.m > kTokens || schedule.tile_n != kSide || schedule.cluster != 2)
    return cudaErrorInvalidValue;
  const TensorMapMatrix x{args.a, args.dtype, args.m, args.index.cols, args.a_stride * 2};
  Cut cut{};
  if (!tensor_map_possible(x) || !encode_tensor_map(cut.x, x, {kTokens, kBox, kBox * 2}))
    return cudaErrorInvalidValue;
  cut.chunks = static_cast<int>(ceil_div(params.cols, Few::kChunkBoxes * kBox));
  cut.row_blocks_32 =
      (static_cast<std::uint64_t>(params.blocks) << 32) / static_cast<std::uint64_t>(params.block_rows);
  switch (schedule.tile_k) {
    case kSide* kFewStageBlocks: return launch_instance<Few>(params, schedule, args, cut);
    case kSide* kManyStageBlocks: return launch_instance<Many>(params, schedule, args, cut);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::decode_lines::x_streamed
