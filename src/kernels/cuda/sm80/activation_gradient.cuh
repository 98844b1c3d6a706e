// The pass between an output's gradient and the two products of a backward pass: dz = dy act'(saved) and, in the same pass, the
// bias's gradient, the column sums of dz.
//
//   grid.x: strips of 32 vectors of columns    grid.y: pieces of the rows    a warp: one row at a time, a vector to each lane
//
// A thread block adds up its piece of a strip and writes the fp32 sums; a second kernel adds the pieces in their order. Every
// sum's order is fixed by the shape and the device, so runs agree bitwise, which float atomics would not.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/epilogue/activation_gradient.cuh"
#include "kernels/cuda/sm80/row.cuh"

namespace sparseloom::kernels::cuda::activation_gradient {

struct Config {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kUnroll = 2;   // rows of a warp in flight, two loads each
  static constexpr int kPerSm = 4;    // thread blocks: 64 KB in flight on an SM, twice what 4.4 TB/s needs at 1 us of latency
  static constexpr int kSumRows = 8;  // of the second kernel's threads, 32 columns wide
  static constexpr int kRowsInStep = kWarps * kUnroll;
};

struct Params {
  const void* dy;
  const void* saved;  // null: no activation
  void* dz;           // null: not wanted
  float* sums;        // [pieces, cols]; null: no bias, or dbias is written at once
  void* dbias;        // null: sums, or no bias
  std::int64_t rows, cols, dy_stride, saved_stride, dz_stride, rows_per_piece;
  Activation activation;
};

using row::Row;

template <class Element, bool kWhole>
__global__ void __launch_bounds__(Config::kThreads, Config::kPerSm) gradient_kernel(const __grid_constant__ Params params) {
  using Lane = Row<Element, kWhole>;
  constexpr int kCount = Lane::kCount, kStrip = 32 * kCount;
  __shared__ float shared[Config::kWarps][kStrip];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t col = std::int64_t{blockIdx.x} * kStrip + lane * kCount;
  const std::int64_t columns = params.cols - col;  // from this lane's first on; <= 0: none of its own
  const std::int64_t begin = std::int64_t{blockIdx.y} * params.rows_per_piece;
  const std::int64_t end = min(params.rows, begin + params.rows_per_piece);

  float sums[kCount] = {};
  if (columns > 0) {
    for (std::int64_t row = begin + warp; row < end; row += Config::kRowsInStep) {
      uint4 dy[Config::kUnroll], saved[Config::kUnroll];
#pragma unroll
      for (int u = 0; u < Config::kUnroll; ++u) {
        const std::int64_t at = row + u * Config::kWarps;
        if (at >= end) continue;
        dy[u] = Lane::load(params.dy, at * params.dy_stride + col, columns);
        if (params.saved != nullptr) saved[u] = Lane::load(params.saved, at * params.saved_stride + col, columns);
      }
#pragma unroll
      for (int u = 0; u < Config::kUnroll; ++u) {
        const std::int64_t at = row + u * Config::kWarps;
        if (at >= end) continue;
        float gradient[kCount];
        Lane::unpack(dy[u], gradient);
        if (params.saved != nullptr) {
          float from[kCount];
          Lane::unpack(saved[u], from);
          epilogue::activation_gradient(params.activation, gradient, from);
        }
        if (params.dz != nullptr) Lane::store(params.dz, at * params.dz_stride + col, columns, gradient);
#pragma unroll
        for (int e = 0; e < kCount; ++e) sums[e] += gradient[e];
      }
    }
  }
  if (params.sums == nullptr && params.dbias == nullptr) return;

#pragma unroll
  for (int e = 0; e < kCount; ++e) shared[warp][e * 32 + lane] = sums[e];  // columns permuted, so that banks do not collide
  __syncthreads();
  for (int c = threadIdx.x; c < kStrip; c += Config::kThreads) {
    const std::int64_t column = std::int64_t{blockIdx.x} * kStrip + c;
    if (column >= params.cols) break;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) sum += shared[w][c % kCount * 32 + c / kCount];
    if (params.dbias != nullptr)
      static_cast<typename Element::Bits*>(params.dbias)[column] = Element::from_f32(sum);
    else
      params.sums[blockIdx.y * params.cols + column] = sum;
  }
}

/// dbias <- the sums of `pieces` rows of [pieces, cols]
template <class Element>
__global__ void __launch_bounds__(32 * Config::kSumRows)
    pieces_kernel(const float* sums, std::int64_t pieces, std::int64_t cols, void* dbias) {
  __shared__ float shared[Config::kSumRows][32];
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < cols) {
#pragma unroll 4
    for (std::int64_t piece = threadIdx.y; piece < pieces; piece += Config::kSumRows) sum += sums[piece * cols + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int r = 1; r < Config::kSumRows; ++r) sum += shared[r][threadIdx.x];
  static_cast<typename Element::Bits*>(dbias)[column] = Element::from_f32(sum);
}

}  // namespace sparseloom::kernels::cuda::activation_gradient
