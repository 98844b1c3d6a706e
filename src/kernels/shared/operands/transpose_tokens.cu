// Transposes dW's fp32 operands, a tile of 64 x 64 at a time.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/shared/operands/transpose.h"

namespace sparseloom::kernels::cuda {
namespace {

// A tile goes through shared memory whose rows are one bank longer, so that bank conflicts are at most
// two-way in either direction.
constexpr int kSide = 64, kThreads = 256, kFours = kSide / 4, kRowsAtOnce = kThreads / kFours;

struct Params {
  float* to[2];
  TokenMatrix from[2];
  unsigned first_tiles;  // thread blocks along grid.x that work on from[0]
  std::int64_t tokens, stride;
  bool aligned[2];  // rows begin at multiples of 16 bytes
};

__device__ __forceinline__ float4 load_four(const float* row, std::int64_t left, bool aligned) {
  if (aligned && left >= 4) return __ldcs(reinterpret_cast<const float4*>(row));
  const auto at = [&](int i) { return i < left ? __ldcs(row + i) : 0.0f; };
  return make_float4(at(0), at(1), at(2), at(3));
}

__global__ void __launch_bounds__(kThreads) transpose(const __grid_constant__ Params params) {
  __shared__ float tile[kSide][kSide + 1];  // [token][column]
  const bool second = blockIdx.x >= params.first_tiles;
  const TokenMatrix& from = params.from[second];
  const std::int64_t column = std::int64_t{second ? blockIdx.x - params.first_tiles : blockIdx.x} * kSide;
  const int four = threadIdx.x % kFours * 4, own_row = threadIdx.x / kFours;
#pragma unroll 1
  for (std::int64_t token = std::int64_t{blockIdx.y} * kSide; token < params.tokens;
       token += std::int64_t{gridDim.y} * kSide) {
    // Load a tile; `own_row` is the thread's row within it.
    float4 loaded[kSide / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kSide / kRowsAtOnce; ++i) {
      const std::int64_t row = token + own_row + i * kRowsAtOnce;
      const std::int64_t left = row < params.tokens ? from.columns - column - four : 0;
      loaded[i] = load_four(from.data + row * from.stride + column + four, left, params.aligned[second]);
    }
    __syncthreads();  // the previous tile has been read
#pragma unroll
    for (int i = 0; i < kSide / kRowsAtOnce; ++i) {
      float* const row = &tile[own_row + i * kRowsAtOnce][four];
      row[0] = loaded[i].x, row[1] = loaded[i].y, row[2] = loaded[i].z, row[3] = loaded[i].w;
    }
    __syncthreads();
    // Store its columns as rows; the stride is a multiple of 4.
#pragma unroll
    for (int i = 0; i < kSide / kRowsAtOnce; ++i) {
      const int own = own_row + i * kRowsAtOnce;
      if (column + own >= from.columns || token + four >= params.stride) continue;
      *reinterpret_cast<float4*>(params.to[second] + (column + own) * params.stride + token + four) =
          make_float4(tile[four][own], tile[four + 1][own], tile[four + 2][own], tile[four + 3][own]);
    }
  }
}

}  // namespace

cudaError_t transpose_tokens(float* const (&to)[2], const TokenMatrix (&from)[2], std::int64_t tokens,
                             cudaStream_t stream) noexcept {
  Params params{};
  std::int64_t tiles[2];
  for (int i = 0; i < 2; ++i) {
    params.to[i] = to[i];
    params.from[i] = from[i];
    params.aligned[i] = reinterpret_cast<std::uintptr_t>(from[i].data) % 16 == 0 && from[i].stride % 4 == 0;
    tiles[i] = (from[i].columns + kSide - 1) / kSide;
  }
  if (tiles[0] + tiles[1] >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  params.first_tiles = static_cast<unsigned>(tiles[0]);
  params.tokens = tokens;
  params.stride = transposed_stride(tokens);
  const auto rows = static_cast<unsigned>(std::min<std::int64_t>((tokens + kSide - 1) / kSide, 65535));
  if (rows > 0 && tiles[0] + tiles[1] > 0) {
    transpose<<<dim3(static_cast<unsigned>(tiles[0] + tiles[1]), rows), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda
