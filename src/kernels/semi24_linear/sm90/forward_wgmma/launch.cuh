// Host side of semi24_wgmma_kernel: tensor maps, the walk, the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/kernel.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/operands.cuh"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::semi24 {

template <class T>
int launch(const Semi24Product& product) noexcept {
  const MatmulArgs& args = product.args;
  if (args.m == 0 || product.rows == 0) return cudaSuccess;
  Params params{};
  const TensorMapBox box{T::kStoreTokens, 64, 128};
  const DType written = T::Element::kScaled ? DType::bf16 : args.dtype;
  const TensorMapMatrix out{args.out, written, args.m, product.rows, args.out_stride * 2};
  const TensorMapMatrix residual{args.residual, written, args.m, product.rows, args.residual_stride * 2};
  if (!describe_inputs<T>(params, product)) return cudaErrorInvalidValue;
  if (!params.is_f32 && (!tensor_map_possible(out) || !encode_tensor_map(params.out, out, box)))
    return cudaErrorInvalidValue;
  if (T::Element::kScaled && args.residual != nullptr) return cudaErrorInvalidValue;
  if (args.residual != nullptr &&
      (!tensor_map_possible(residual) || !encode_tensor_map(params.residual, residual, box)))
    return cudaErrorInvalidValue;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  const std::int64_t token_tiles = ceil_div(args.m, T::kTokens), row_tiles = ceil_div(product.rows, T::kRows);
  if (token_tiles * row_tiles >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  params.token_tiles = static_cast<unsigned>(token_tiles);
  params.row_tiles = static_cast<unsigned>(row_tiles);
  params.tiles = static_cast<unsigned>(token_tiles * row_tiles);
  params.chunk = chunk_of(params.row_tiles, product.rows * product.cols * T::Element::kBytes / 2,
                          static_cast<std::int64_t>(device.l2_bytes));
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<semi24_wgmma_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  const auto places = static_cast<unsigned>(std::max(device.multiprocessors, 1));
  return launch_kernel({.grid = std::min(params.tiles, places),
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream)},
                       semi24_wgmma_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::semi24
