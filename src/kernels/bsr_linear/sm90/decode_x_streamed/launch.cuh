// Host side of kernel.cuh: decides how block rows are divided, and launches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode_x_streamed/kernel.cuh"
#include "kernels/bsr_linear/sm90/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::decode90::x_streamed {

template <class C>
int launch_instance(const Params& params, const MatmulArgs& args, Cut& cut) noexcept {
  constexpr std::size_t kBytes = sizeof(SharedStorage<C>);
  static_assert(kBytes <= 227 * 1024, "what sm_90 has");  // the limit of sm_90
  if (const cudaError_t status = allow_shared_memory<decode_x_streamed_kernel<C>>(kBytes, args.device);
      status != cudaSuccess)
    return status;
  cut.warps = std::min(C::kMostWarps / cut.strips, 4);
  // With more than eight, the prefetches get in the way of X; measured slower.
  cut.ahead =
      static_cast<int>(std::clamp<std::int64_t>(params.blocks / params.block_rows / 2 / cut.warps, 1, 8));
  return launch_kernel({.grid = static_cast<unsigned>(2 * ceil_div(params.block_rows, cut.strips)),
                        .block = static_cast<unsigned>(32 * (cut.strips * cut.warps + 1)),
                        .shared_bytes = kBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = 2},
                       decode_x_streamed_kernel<C>, params, cut);
}

/// For products that pass (entry.h). pairs: clusters that run at once.
template <class Mma>
int launch(const Params& params, const MatmulArgs& args, std::int64_t pairs) noexcept {
  using Few = Config<Mma, 12, 6>;
  using Many = Config<Mma, kMostStrips, 4>;
  const TensorMapMatrix x{args.a, args.dtype, args.m, args.index.cols, args.a_stride * 2};
  Cut cut{};
  if (!tensor_map_possible(x) ||
      !encode_tensor_map(cut.x, x, {kTokens, x_in_shared::kBox, x_in_shared::kBox * 2}))
    return cudaErrorInvalidValue;
  cut.strips = static_cast<int>(strips_each(params.block_rows, pairs));
  cut.chunks = static_cast<int>(ceil_div(params.cols, Few::kChunkBoxes * x_in_shared::kBox));
  cut.row_blocks_32 =
      (static_cast<std::uint64_t>(params.blocks) << 32) / static_cast<std::uint64_t>(params.block_rows);
  return cut.strips <= Few::kMostWarps ? launch_instance<Few>(params, args, cut)
                                       : launch_instance<Many>(params, args, cut);
}

}  // namespace sparseloom::kernels::cuda::decode90::x_streamed
