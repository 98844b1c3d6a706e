// out [m, rows] = act((x [m, cols] W^T) scales + bias) with e4m3 operands, by FFMA. It serves the calls that
// Hopper's tensor-core kernels refuse: narrow blocks, and misaligned operands. A thread block computes 64
// tokens x up to 32 outputs of one block row, from operands that are widened to fp32 in shared memory; a
// thread computes one output of 8 tokens. Tensor cores older than Hopper's do not support 8-bit floats.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/convert.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kTokens = 64, kOutputs = 32, kDepth = 32, kThreads = 256,
              kPerThread = kTokens * kOutputs / kThreads;

struct Params {
  const std::uint8_t *x, *values;
  const std::int32_t *crow, *col;
  const float *x_scale, *w_scale;
  const void* bias;
  void* out;
  std::int64_t m, rows, cols, x_stride, out_stride, tiles, m_tiles;
  int bm, bn, strips;  // strips: per block row, each kOutputs wide
  bool x_scale_each, w_scale_each;
  Activation activation;
};

// Converts e4m3 to fp32 like sparseloom/generic/float8.h.
__device__ __forceinline__ float widen(std::uint8_t bits) {
  const std::uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  if (magnitude == 0x7f) return __uint_as_float(sign | 0x7fc00000u);
  const float value = __uint_as_float(magnitude << 20) *
                      0x1p120f;  // the exponents' biases differ by 120; denormals convert exactly
  return __uint_as_float(sign | __float_as_uint(value));
}

struct F32 {
  static __device__ __forceinline__ float load(const void* from, std::int64_t i) {
    return static_cast<const float*>(from)[i];
  }
  static __device__ __forceinline__ void store(void* to, std::int64_t i, float v) {
    static_cast<float*>(to)[i] = v;
  }
};

struct Bf16 {
  static __device__ __forceinline__ float load(const void* from, std::int64_t i) {
    return ptx::cvt_f32_bf16(static_cast<const std::uint16_t*>(from)[i]);
  }
  static __device__ __forceinline__ void store(void* to, std::int64_t i, float v) {
    static_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(ptx::cvt_rn_bf16x2(v, 0));
  }
};

template <class Out>
__global__ void __launch_bounds__(kThreads) ffma_f8_kernel(const Params p) {
  __shared__ float x[kTokens][kDepth + 1], w[kOutputs][kDepth + 1];
  const int output = threadIdx.x % kOutputs, first = threadIdx.x / kOutputs * kPerThread;
  for (std::int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const std::int64_t token = tile % p.m_tiles * kTokens, strip = tile / p.m_tiles;
    const std::int64_t block_row = strip / p.strips;
    const int within = static_cast<int>(strip % p.strips) * kOutputs, width = min(kOutputs, p.bm - within);
    const std::int64_t column = block_row * p.bm + within;
    float sum[kPerThread] = {};
    for (std::int32_t block = p.crow[block_row]; block < p.crow[block_row + 1]; ++block) {
      const std::uint8_t* values = p.values + (std::int64_t{block} * p.bm + within) * p.bn;
      for (int k = 0; k < p.bn; k += kDepth) {
        const int depth = min(kDepth, p.bn - k);
        const std::int64_t along = std::int64_t{p.col[block]} * p.bn + k;
        __syncthreads();  // all threads have read the previous K tile
        // Load and widen the K tiles of x and of W.
        for (int i = threadIdx.x; i < kTokens * kDepth; i += kThreads) {
          const int row = i / kDepth, at = i % kDepth;
          const bool exists = at < depth && token + row < p.m && along + at < p.cols;
          x[row][at] = exists ? widen(p.x[(token + row) * p.x_stride + along + at]) : 0.0f;
        }
        for (int i = threadIdx.x; i < kOutputs * kDepth; i += kThreads) {
          const int row = i / kDepth, at = i % kDepth;
          w[row][at] = at < depth && row < width ? widen(values[row * p.bn + k + at]) : 0.0f;
        }
        __syncthreads();
        // Multiply.
        for (int at = 0; at < depth; ++at) {
#pragma unroll
          for (int i = 0; i < kPerThread; ++i) sum[i] = fmaf(x[first + i][at], w[output][at], sum[i]);
        }
      }
    }
    // Epilogue: scales, bias, activation, rounding.
    if (output >= width || column + output >= p.rows) continue;
    const float shift = p.bias != nullptr ? Out::load(p.bias, column + output) : 0.0f;
    const float w_scale = p.w_scale[p.w_scale_each ? column + output : 0];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t row = min(token + first + i, p.m - 1);
      sum[i] = fmaf(sum[i] * p.x_scale[p.x_scale_each ? row : 0], w_scale, shift);
    }
    epilogue::activate(p.activation, sum);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t row = token + first + i;
      if (row < p.m) Out::store(p.out, row * p.out_stride + column + output, sum[i]);
    }
  }
}

}  // namespace

int sm80_ffma_f8(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (args.direction != Direction::forward || args.dtype != DType::f8e4m3) return cudaErrorInvalidValue;
  if (args.m == 0 || index.rows == 0) return cudaSuccess;
  Params p{};
  p.x = static_cast<const std::uint8_t*>(args.a), p.values = static_cast<const std::uint8_t*>(args.values);
  p.crow = index.crow, p.col = index.col;
  p.x_scale = args.a_scale, p.x_scale_each = args.a_scale_each;
  p.w_scale = args.w_scale, p.w_scale_each = args.w_scale_each;
  p.bias = args.bias, p.out = args.out, p.activation = args.activation;
  p.m = args.m, p.rows = index.rows, p.cols = index.cols, p.x_stride = args.a_stride,
  p.out_stride = args.out_stride;
  p.bm = index.block.rows, p.bn = index.block.cols, p.strips = (p.bm + kOutputs - 1) / kOutputs;
  p.m_tiles = (args.m + kTokens - 1) / kTokens, p.tiles = p.m_tiles * index.block_rows() * p.strips;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(p.tiles, std::int64_t{1} << 30));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  if (args.out_dtype == DType::bf16) {
    ffma_f8_kernel<Bf16><<<grid, kThreads, 0, stream>>>(p);
  } else {
    ffma_f8_kernel<F32><<<grid, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda
