// Forward of f32: out [m, rows] = act(x [m, cols] W^T + bias) + residual.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda::semi24_ffma {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

struct Params {
  const float4* values;  // two groups each
  const std::uint8_t* positions;
  const float *x, *bias, *residual;
  float* out;
  std::int64_t x_stride, out_stride, residual_stride;  // elements
  std::int32_t rows, tokens, pairs;                    // pairs of groups in a row of W
  Activation activation;
};

__device__ __forceinline__ float4 ld_four(const float* from) {
  const uint4 bits = ptx::ld_global(reinterpret_cast<const uint4*>(from));
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                     __uint_as_float(bits.w));
}

/// The element of a group selected by the lowest two bits.
__device__ __forceinline__ float member(const float4& group, unsigned bits) {
  const float low = (bits & 1u) != 0 ? group.y : group.x, high = (bits & 1u) != 0 ? group.w : group.z;
  return (bits & 2u) != 0 ? high : low;
}

template <int kMany>
__global__ void __launch_bounds__(kThreads) ffma_forward(const __grid_constant__ Params params) {
  __shared__ float of_warps[kWarps][kMany * kForwardRows];
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) * kForwardRows,
                     token = static_cast<std::int32_t>(blockIdx.y) * kMany;
  float sums[kMany][kForwardRows] = {};
  // Rows and tokens past the last repeat it, and are not written.
  const float4* values[kForwardRows];
  const std::uint8_t* positions[kForwardRows];
#pragma unroll
  for (int r = 0; r < kForwardRows; ++r) {
    const std::int64_t at = std::int64_t{min(row + r, params.rows - 1)} * params.pairs;
    values[r] = params.values + at, positions[r] = params.positions + at;
  }
#pragma unroll 2
  for (std::int32_t pair = threadIdx.x; pair < params.pairs; pair += kThreads) {
    float4 stored[kForwardRows];
    unsigned bits[kForwardRows];
#pragma unroll
    for (int r = 0; r < kForwardRows; ++r) {
      stored[r] = ld_four(reinterpret_cast<const float*>(values[r] + pair));
      bits[r] = ptx::ld_global(positions[r] + pair);
    }
#pragma unroll
    for (int t = 0; t < kMany; ++t) {
      const float* const x = params.x + min(token + t, params.tokens - 1) * params.x_stride + pair * 8;
      const float4 first = ld_four(x), second = ld_four(x + 4);
#pragma unroll
      for (int r = 0; r < kForwardRows; ++r) {
        float& sum = sums[t][r];
        sum = fmaf(stored[r].x, member(first, bits[r]), sum);
        sum = fmaf(stored[r].y, member(first, bits[r] >> 2), sum);
        sum = fmaf(stored[r].z, member(second, bits[r] >> 4), sum);
        sum = fmaf(stored[r].w, member(second, bits[r] >> 6), sum);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kMany; ++t) {
#pragma unroll
    for (int r = 0; r < kForwardRows; ++r) {
      float sum = sums[t][r];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][t * kForwardRows + r] = sum;
    }
  }
  __syncthreads();
  static_assert(kMany * kForwardRows <= kThreads);
  const std::int32_t t = token + static_cast<std::int32_t>(threadIdx.x) / kForwardRows,
                     r = row + static_cast<std::int32_t>(threadIdx.x) % kForwardRows;
  if (threadIdx.x >= kMany * kForwardRows || t >= params.tokens || r >= params.rows) return;
  float y[1] = {params.bias != nullptr ? ptx::ld_global(params.bias + r) : 0.0f};
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][threadIdx.x];
  y[0] += sum;
  epilogue::activate(params.activation, y);
  if (params.residual != nullptr) y[0] += ptx::ld_global(params.residual + t * params.residual_stride + r);
  params.out[t * params.out_stride + r] = y[0];
}

}  // namespace
}  // namespace sparseloom::kernels::cuda::semi24_ffma

namespace sparseloom::kernels::cuda {

int sm80_semi24_ffma_forward(const MatmulArgs& args, const Semi24View& w, int instance) noexcept {
  using namespace semi24_ffma;
  static constexpr void (*kKernels[kTokensCount])(Params) = {ffma_forward<1>, ffma_forward<4>,
                                                             ffma_forward<8>};
  if (args.m == 0 || w.rows == 0) return cudaSuccess;
  if (instance < 0 || instance >= kTokensCount || args.dtype != DType::f32 || args.m > kMostTokens ||
      w.cols == 0 || w.cols % 8 != 0 || !vector_aligned(args.values, 0) ||
      !vector_aligned(args.a, args.a_stride * 4))
    return cudaErrorInvalidValue;
  const Params params{static_cast<const float4*>(args.values),
                      w.positions,
                      static_cast<const float*>(args.a),
                      static_cast<const float*>(args.bias),
                      static_cast<const float*>(args.residual),
                      static_cast<float*>(args.out),
                      args.a_stride,
                      args.out_stride,
                      args.residual_stride,
                      static_cast<std::int32_t>(w.rows),
                      static_cast<std::int32_t>(args.m),
                      static_cast<std::int32_t>(w.cols / 8),
                      args.activation};
  const auto tiles = [](std::int64_t size, int tile) {
    return static_cast<unsigned>((size + tile - 1) / tile);
  };
  return launch_kernel({.grid = dim3(tiles(w.rows, kForwardRows), tiles(args.m, kTokens[instance])),
                        .block = kThreads,
                        .stream = static_cast<cudaStream_t>(args.stream)},
                       kKernels[instance], params);
}

}  // namespace sparseloom::kernels::cuda
