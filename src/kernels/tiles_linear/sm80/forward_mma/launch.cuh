// Host side of tiles_mma_kernel.
#pragma once

#include <cstdint>

#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/vector.cuh"
#include "kernels/tiles_linear/sm80/forward_mma/entry.h"
#include "kernels/tiles_linear/sm80/forward_mma/kernel.cuh"

namespace sparseloom::kernels::cuda::tiles_mma {

template <class T>
int launch(const TilesProduct& product) noexcept {
  const MatmulArgs& args = product.args;
  const TilesView& w = product.w;
  if (args.m == 0 || w.rows == 0) return cudaSuccess;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  constexpr std::int64_t kMostTokenTiles = 65535, kMostSize = (std::int64_t{1} << 31) - 512;
  const std::int64_t token_tiles = ceil_div(args.m, T::kTokens);
  if (token_tiles > kMostTokenTiles || w.rows > kMostSize || w.cols > kMostSize ||
      !vector_aligned(args.values, 0) || !vector_aligned(args.a, args.m > 1 ? args.a_stride * 2 : 0))
    return cudaErrorInvalidValue;
  Params params{};
  params.dense = static_cast<const std::byte*>(args.values);
  params.halves = params.dense + w.dense_values() * 2;
  params.x = static_cast<const std::byte*>(args.a);
  params.metadata = reinterpret_cast<const std::uint32_t*>(w.metadata);
  params.table = w.table;
  params.bias = static_cast<const std::uint16_t*>(args.bias);
  params.residual = static_cast<const std::uint16_t*>(args.residual);
  params.out = static_cast<std::uint16_t*>(args.out);
  params.x_stride = args.a_stride, params.out_stride = args.out_stride;
  params.residual_stride = args.residual_stride;
  params.rows = static_cast<std::int32_t>(w.rows), params.cols = static_cast<std::int32_t>(w.cols);
  params.tokens = static_cast<std::int32_t>(args.m);
  params.table_units = static_cast<std::int32_t>(w.units());
  params.parts = static_cast<std::int32_t>(w.side / 64);
  params.dense_units = static_cast<std::int32_t>(w.dense * (w.side / 64));
  params.half_units = static_cast<std::int32_t>(w.halves * (w.side / 64));
  params.activation = args.activation;
  if (const cudaError_t status = allow_shared_memory<tiles_mma_kernel<T>>(T::kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  return launch_kernel(
      {.grid = dim3(static_cast<unsigned>(ceil_div(w.rows, T::kRows)), static_cast<unsigned>(token_tiles)),
       .block = T::kThreads,
       .shared_bytes = T::kSharedBytes,
       .stream = static_cast<cudaStream_t>(args.stream)},
      tiles_mma_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::tiles_mma
