// The epilogue: the layout of sums in shared memory, and stores of four outputs of a token at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/params.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::decode_lines {

/// The index, in float4, of outputs 4 four .. 4 four + 3 of a token in a slot of 16 outputs. The XOR puts the
/// lanes of one mma result into different banks.
__host__ __device__ constexpr int slot_four(int token, int four) {
  return token * 4 + (four ^ (token >> 2 & 1) * 2);
}

template <class C>
__device__ __forceinline__ float residual_of(const Params& params, int token, int row) {
  if (params.residual == nullptr || token >= params.m || row >= params.rows) return 0;
  const auto* residual = static_cast<const std::uint16_t*>(params.residual);
  return C::Mma::to_float(ptx::ld_global(residual + token * params.residual_stride + row));
}

/// The bias bits of four outputs: the constructor starts the load, the addition waits for it.
struct BiasFour {
  std::uint16_t bits[4] = {};

  __device__ __forceinline__ BiasFour(const Params& params, int row) {
    if (params.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      bits[i] =
          ptx::ld_global_if(row + i < params.rows, static_cast<const std::uint16_t*>(params.bias) + row + i);
  }
};

/// Rounds and stores four outputs of a token that exists.
template <class C>
__device__ __forceinline__ void put_four(const Params& params, const float (&y)[4], int token, int row) {
  if (row >= params.rows) return;
  const std::uint32_t low = C::Mma::rounded(y[0], y[1]), high = C::Mma::rounded(y[2], y[3]);
  auto* out = static_cast<std::uint16_t*>(params.out) + token * params.out_stride + row;
  if (params.out_fours && row + 3 < params.rows) {
    *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
    return;
  }
  const std::uint32_t words[2] = {low, high};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < params.rows) out[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
}

/// Finishes and stores four outputs of a token.
template <class C>
__device__ __forceinline__ void store_four(const Params& params, const float4& sum, const BiasFour& bias,
                                           int token, int row) {
  if (token >= params.m || row >= params.rows) return;
  float y[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] += C::Mma::to_float(bias.bits[i]);
  if (params.activation != Activation::none) epilogue::activate(params.activation, y);
  if (params.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] += residual_of<C>(params, token, row + i);
  }
  put_four<C>(params, y, token, row);
}

}  // namespace sparseloom::kernels::cuda::decode_lines
