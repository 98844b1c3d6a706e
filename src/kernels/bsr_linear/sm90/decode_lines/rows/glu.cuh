// A gated linear unit of few tokens: a thread block computes a strip of gates and the same strip of factors,
// each by a group of warps of its own, as rows/kernel.cuh does, and multiplies them at the end.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/rows/kernel.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// The gates, with the activation, bias, x and out; and the factors.
struct Pair {
  Params of[2];
  Guess guess[2];
};

/// Four outputs of one of both products, rounded as that product alone would store them.
template <class C>
__device__ __forceinline__ void rounded(float (&y)[4], const float4& sum, const BiasFour& bias) {
  const float z[4] = {sum.x + C::Mma::to_float(bias.bits[0]), sum.y + C::Mma::to_float(bias.bits[1]),
                      sum.z + C::Mma::to_float(bias.bits[2]), sum.w + C::Mma::to_float(bias.bits[3])};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t pair = C::Mma::rounded(z[i / 2 * 2], z[i / 2 * 2 + 1]);
    y[i] = C::Mma::to_float(static_cast<std::uint16_t>(pair >> (i % 2 * 16)));
  }
}

/// A thread block has the shape (32 * warps of a strip, 2): the gates' warps and the factors'.
template <class C, template <class> class Walk>
__global__ void __launch_bounds__(32 * C::kWarps, 1)
    decode_lines_glu_kernel(const __grid_constant__ Pair pair) {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  char* shared = reinterpret_cast<char*>(dynamic_shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int member = __shfl_sync(~0u, threadIdx.y, 0), number = static_cast<int>(blockIdx.x);
  const Params& params = pair.of[member];
  Strip strip(params, number);
  prefetch<C>(params, pair.guess[member], strip, warp, lane);
  char* const slots = shared + member * warps * C::kWarpBytes;
  char* const barriers = shared + warps * 2 * C::kWarpBytes + (member * warps + warp) * C::kStages * 8;
  Walk<C> walk(params, slots + warp * C::kWarpBytes, barriers, warp, warps, lane);
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  strip.read(params);
  constexpr int kFours = C::kRows / 4;
  const int row = number * C::kRows + threadIdx.x % kFours * 4;
  const BiasFour gate_bias(pair.of[0], row), factor_bias(pair.of[1], row);
  walk.run(strip);
  __syncthreads();
  // All warps take part: the tokens of a strip are divided among both groups.
  const Params& to = pair.of[0];
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  for (int token = thread / kFours; token < to.m; token += 2 * blockDim.x / kFours) {
    const char* place = shared + C::slot_four(token, thread % kFours) * 16;
    float gates[4], factors[4];
    rounded<C>(gates, sum_of_warps<C>(place, warps), gate_bias);
    rounded<C>(factors, sum_of_warps<C>(place + warps * C::kWarpBytes, warps), factor_bias);
    if (to.activation != Activation::none) epilogue::activate(to.activation, gates);
    put_four<C>(to,
                {gates[0] * factors[0], gates[1] * factors[1], gates[2] * factors[2], gates[3] * factors[3]},
                token, row);
  }
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
