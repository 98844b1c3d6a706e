// Host side of tiles_wgmma_kernel: tensor maps, the walk, the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/shared/early_launch.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/entry.h"
#include "kernels/tiles_linear/sm90/forward_wgmma/kernel.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/operands.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::tiles {

template <class T>
int launch(const TilesProduct& call) noexcept {
  const MatmulArgs& args = call.args;
  if (args.m == 0 || call.w.rows == 0) return cudaSuccess;
  Params params{};
  semi24::Params& product = params.product;
  const TensorMapBox box{T::kStoreTokens, 64, 128};
  const TensorMapMatrix out{args.out, args.dtype, args.m, call.w.rows, args.out_stride * 2};
  const TensorMapMatrix residual{args.residual, args.dtype, args.m, call.w.rows, args.residual_stride * 2};
  if (!describe_inputs<T>(params, call) || !tensor_map_possible(out) ||
      !encode_tensor_map(product.out, out, box))
    return cudaErrorInvalidValue;
  if (args.residual != nullptr &&
      (!tensor_map_possible(residual) || !encode_tensor_map(product.residual, residual, box)))
    return cudaErrorInvalidValue;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  const std::int64_t token_tiles = semi24::ceil_div(args.m, T::kTokens),
                     row_tiles = semi24::ceil_div(call.w.rows, T::kRows);
  if (token_tiles * row_tiles >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  product.token_tiles = static_cast<unsigned>(token_tiles);
  product.row_tiles = static_cast<unsigned>(row_tiles);
  product.tiles = static_cast<unsigned>(token_tiles * row_tiles);
  product.chunk =
      semi24::chunk_of(product.row_tiles, (call.w.dense * 2 + call.w.halves) * call.w.side * call.w.side,
                       static_cast<std::int64_t>(device.l2_bytes));
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<tiles_wgmma_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  return launch_kernel(
      {.grid = std::min(product.tiles, static_cast<unsigned>(std::max(device.multiprocessors, 1))),
       .block = T::kThreads,
       .shared_bytes = kSharedBytes,
       .stream = static_cast<cudaStream_t>(args.stream)},
      tiles_wgmma_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::tiles
