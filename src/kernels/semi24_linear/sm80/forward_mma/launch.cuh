// Host side of semi24_mma_kernel.
#pragma once

#include <cstdint>

#include "kernels/semi24_linear/sm80/forward_mma/entry.h"
#include "kernels/semi24_linear/sm80/forward_mma/kernel.cuh"
#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda::semi24_mma {

template <class T>
int launch(const Semi24Product& product) noexcept {
  const MatmulArgs& args = product.args;
  if (args.m == 0 || product.rows == 0) return cudaSuccess;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  constexpr std::int64_t kMostTokenTiles = 65535, kMostSize = (std::int64_t{1} << 31) - 512;
  const std::int64_t token_tiles = ceil_div(args.m, T::kTokens);
  if (token_tiles > kMostTokenTiles || product.rows > kMostSize || product.cols > kMostSize)
    return cudaErrorInvalidValue;
  Params params{};
  params.values = static_cast<const std::byte*>(args.values);
  params.x = static_cast<const std::byte*>(args.a);
  params.metadata = reinterpret_cast<const std::uint32_t*>(product.metadata);
  params.bias = static_cast<const std::uint16_t*>(args.bias);
  params.residual = static_cast<const std::uint16_t*>(args.residual);
  params.out = static_cast<std::uint16_t*>(args.out);
  params.stored = 2 * ceil_div(product.cols, 4);
  params.x_stride = args.a_stride, params.out_stride = args.out_stride;
  params.residual_stride = args.residual_stride;
  params.rows = static_cast<std::int32_t>(product.rows),
  params.cols = static_cast<std::int32_t>(product.cols);
  params.tokens = static_cast<std::int32_t>(args.m);
  params.metadata_rows = static_cast<std::int32_t>(ceil_div(product.rows, kMetadataRows));
  params.metadata_cols = static_cast<std::int32_t>(ceil_div(product.cols, kMetadataCols));
  params.activation = args.activation;
  params.aligned = vector_aligned(args.values, params.stored * 2) &&
                   vector_aligned(args.a, args.m > 1 ? args.a_stride * 2 : 0);
  if (const cudaError_t status = allow_shared_memory<semi24_mma_kernel<T>>(T::kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  return launch_kernel({.grid = dim3(static_cast<unsigned>(ceil_div(product.rows, T::kRows)),
                                     static_cast<unsigned>(token_tiles)),
                        .block = T::kThreads,
                        .shared_bytes = T::kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream)},
                       semi24_mma_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::semi24_mma
