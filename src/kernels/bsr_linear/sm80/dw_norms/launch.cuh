// The host side of dw_norms.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/cuda/gradient_norms.h"
#include "kernels/bsr_linear/sm80/dw_norms/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda::mma_norms {

template <class Type>
int launch(const GradientNorms& call) noexcept {
  constexpr int kSharedBytes = mma::dw::Config<Type, kSide>::kSharedBytes;
  constexpr auto kElementBytes = static_cast<std::int64_t>(sizeof(typename Type::Word));
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto cells_log2 = [](int side) { return std::countr_zero(static_cast<unsigned>(side / 8)); };
  const std::int64_t tile_cols = ceil_div(call.x.cols, kSide),
                     tiles = ceil_div(call.dy.cols, kSide) * tile_cols;
  if (tiles > INT32_MAX || ceil_div(call.dy.rows, 16) > INT32_MAX) return cudaErrorInvalidValue;
  const Params params{call.dy.data,
                      call.x.data,
                      call.dy.stride,
                      call.x.stride,
                      call.dy.rows,
                      call.dy.cols,
                      call.x.cols,
                      vector_aligned(call.dy.data, call.dy.stride * kElementBytes),
                      vector_aligned(call.x.data, call.x.stride * kElementBytes),
                      {call.norms, static_cast<std::int32_t>(ceil_div(call.dy.cols, call.block.rows)),
                       static_cast<std::int32_t>(ceil_div(call.x.cols, call.block.cols)),
                       cells_log2(call.block.rows), cells_log2(call.block.cols)},
                      call.norm,
                      static_cast<std::int32_t>(tile_cols)};
  if (const cudaError_t status = allow_shared_memory<mma_norms_kernel<Type>>(kSharedBytes, call.device);
      status != cudaSuccess)
    return status;
  mma_norms_kernel<Type><<<static_cast<unsigned>(tiles), mma::dw::kThreads, kSharedBytes,
                           static_cast<cudaStream_t>(call.stream)>>>(params);
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda::mma_norms
