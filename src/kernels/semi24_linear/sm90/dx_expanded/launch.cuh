// Host side of semi24_dx_kernel.
#pragma once

#include <cstdint>

#include "kernels/semi24_linear/sm90/dx_expanded/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::semi24_dx {

template <class T>
int launch(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept {
  if (args.m == 0 || w.cols == 0) return cudaSuccess;
  const auto tiles = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const TensorMapMatrix values{args.values, args.dtype, w.rows, w.row_values(), w.row_values() * 2};
  const TensorMapMatrix x{args.a, args.dtype, args.m, w.rows, args.a_stride * 2};
  const TensorMapMatrix out{args.out, args.dtype, args.m, w.cols, args.out_stride * 2};
  const std::int64_t token_tiles = tiles(args.m, T::kTokens), depth_tiles = tiles(w.rows, kDepth);
  if (!tensor_map_possible(values) || !tensor_map_possible(x) || !tensor_map_possible(out) ||
      w.cols % kInputsMultiple != 0 || reinterpret_cast<std::uintptr_t>(w.positions) % 4 != 0 ||
      token_tiles > 65535)
    return cudaErrorInvalidValue;
  if (ranks < 1 || ranks > (T::kDivides ? kMostRanks : 1) || ranks > depth_tiles)
    return cudaErrorInvalidValue;
  Params params{};
  params.positions = w.positions;
  params.position_bytes = static_cast<std::int32_t>(w.position_bytes());
  params.out = static_cast<std::uint16_t*>(args.out);
  params.out_stride = args.out_stride;
  params.rows = static_cast<std::int32_t>(w.rows);
  params.cols = static_cast<std::int32_t>(w.cols);
  params.tokens = static_cast<std::int32_t>(args.m);
  params.tiles_of_depth = static_cast<std::int32_t>(depth_tiles);
  if (!encode_tensor_map(params.values, values, {kDepth, 64, 128}) ||
      !encode_tensor_map(params.x, x, {T::kTokens, kDepth, 128}))
    return cudaErrorInvalidValue;
  constexpr int kSharedBytes = sizeof(Shared<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<semi24_dx_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  const dim3 grid(static_cast<unsigned>(tiles(w.cols, T::kInputs) * ranks),
                  static_cast<unsigned>(token_tiles));
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = ranks},
                       semi24_dx_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::semi24_dx
