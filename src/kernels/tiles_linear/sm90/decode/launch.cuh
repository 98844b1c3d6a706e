// Host side of tiles_decode_kernel.
#pragma once

#include <cstdint>

#include "kernels/shared/early_launch.cuh"
#include "kernels/tiles_linear/sm90/decode/entry.h"
#include "kernels/tiles_linear/sm90/decode/kernel.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/operands.cuh"

namespace sparseloom::kernels::cuda::tiles {

template <class T, int kAtOnce>
int launch_decode(const TilesProduct& call, int ranks) noexcept {
  const MatmulArgs& args = call.args;
  if (args.m == 0 || call.w.rows == 0) return cudaSuccess;
  Params params{};
  if (!describe_inputs<T>(params, call)) return cudaErrorInvalidValue;
  if (ranks < 1 || ranks > kMostRanks || ranks > params.product.k_tiles) return cudaErrorInvalidValue;
  const std::int64_t row_tiles = semi24::ceil_div(call.w.rows, T::kRows),
                     blocks = row_tiles * semi24::ceil_div(args.m, T::kTokens) * ranks;
  if (blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  params.product.row_tiles = static_cast<unsigned>(row_tiles);
  const semi24::DecodeOut to{args.out, args.residual, args.out_stride, args.residual_stride,
                             static_cast<std::int32_t>(args.m)};
  constexpr int kSharedBytes = sizeof(DecodeStorage<T>);
  static_assert(kAtOnce * (kSharedBytes + 1024) <= 228 * 1024, "exceeds the shared memory of sm_90");
  if (const cudaError_t status =
          allow_shared_memory<tiles_decode_kernel<T, kAtOnce>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  return launch_kernel({.grid = static_cast<unsigned>(blocks),
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = ranks},
                       tiles_decode_kernel<T, kAtOnce>, params, to);
}

}  // namespace sparseloom::kernels::cuda::tiles
