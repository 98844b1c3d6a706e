// Host side of semi24_decode_kernel.
#pragma once

#include <cstdint>

#include "kernels/semi24_linear/sm90/decode/entry.h"
#include "kernels/semi24_linear/sm90/decode/kernel.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/operands.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda::semi24 {

template <class Element, int kTokens>
int launch_decode(const Semi24Product& product, int ranks) noexcept {
  using T = DecodeTile<Element, kTokens>;
  const MatmulArgs& args = product.args;
  if (args.m == 0 || product.rows == 0) return cudaSuccess;
  Params params{};
  if (T::Element::kScaled && args.residual != nullptr) return cudaErrorInvalidValue;
  if (args.m > kTokens || !describe_inputs<T>(params, product)) return cudaErrorInvalidValue;
  if (ranks < 1 || ranks > kMostRanks || ranks > params.k_tiles) return cudaErrorInvalidValue;
  const DecodeOut to{args.out, args.residual, args.out_stride, args.residual_stride,
                     static_cast<std::int32_t>(args.m)};
  constexpr int kSharedBytes = sizeof(DecodeStorage<T>);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<semi24_decode_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  return launch_kernel({.grid = static_cast<unsigned>(ceil_div(product.rows, T::kRows) * ranks),
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = ranks},
                       semi24_decode_kernel<T>, params, to);
}

}  // namespace sparseloom::kernels::cuda::semi24
