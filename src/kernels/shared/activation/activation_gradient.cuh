// The first pass of a backward, before the two matrix products: dz = dy * act'(saved). It also computes the
// bias gradient, the column sums of dz.
//
//   grid.x: strips of 32 vectors of columns    grid.y: segments (pieces) of the rows
//   A warp processes one row at a time; each lane holds one vector of it.
//
// The segments take groups of rows in turn, the last rows first. So all thread blocks work on the same region
// of memory at a time, and the next product first reads the rows that L2 received last.
//
// A thread block adds up its segment of a strip and writes fp32 sums; a second kernel adds the segments in
// order. The shape and the device fix the order of every sum, so runs agree bitwise. Float atomics would not
// ensure this.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/activation/row.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::activation_gradient {

struct Config {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  // Rows in flight per warp, two loads each, while the two rows before them are processed.
  static constexpr int kUnroll = 2;
  // Resident thread blocks per SM. They keep 48 KB in flight; 4.4 TB/s at 1 us of latency needs 33 KB per SM.
  static constexpr int kPerSm = 3;
  static constexpr int kSumRows = 8;  // rows of the second kernel's 32-wide thread block
  static constexpr int kGroupRows = kWarps * kUnroll;
};

struct Params {
  const void* dy;
  const void* saved;  // null: no activation
  void* dz;           // null: dz is not wanted
  float* sums;        // [pieces, cols]; null: no bias, or dbias is written directly
  void* dbias;        // null: no bias, or `sums` is written instead
  std::int64_t rows, cols, dy_stride, saved_stride, dz_stride;
  Activation activation;
};

using row::Row;

/// A warp's rows of one group. Rows past the last read the last one, so that no load is inside a branch:
/// where branches meet, the code waits for the loads of either side.
template <class Element, bool kWhole, bool kActivated>
struct Group {
  using Lane = Row<Element, kWhole>;
  uint4 dy[Config::kUnroll], saved[kActivated ? Config::kUnroll : 1];

  static __device__ __forceinline__ std::int64_t row(std::int64_t group, int u) {
    return group * Config::kGroupRows + u * Config::kWarps + threadIdx.x / 32;
  }
  __device__ __forceinline__ void load(const Params& params, std::int64_t group, std::int64_t col) {
#pragma unroll
    for (int u = 0; u < Config::kUnroll; ++u) {
      const std::int64_t at = max(min(row(group, u), params.rows - 1), std::int64_t{0});
      dy[u] = Lane::load(params.dy, at * params.dy_stride + col, params.cols - col);
      if constexpr (kActivated)
        saved[u] = Lane::load(params.saved, at * params.saved_stride + col, params.cols - col);
    }
  }
  /// Computes and stores dz, and adds it to the column sums.
  __device__ __forceinline__ void finish(const Params& params, std::int64_t group, std::int64_t col,
                                         float (&sums)[Lane::kCount]) const {
#pragma unroll
    for (int u = 0; u < Config::kUnroll; ++u) {
      if (row(group, u) >= params.rows) continue;
      float gradient[Lane::kCount];
      Lane::unpack(dy[u], gradient);
      if constexpr (kActivated) {
        float from[Lane::kCount];
        Lane::unpack(saved[u], from);
        epilogue::activation_gradient<sizeof(typename Element::Bits) == 2>(params.activation, gradient, from);
      }
      if (params.dz != nullptr)
        Lane::store(params.dz, row(group, u) * params.dz_stride + col, params.cols - col, gradient);
#pragma unroll
      for (int e = 0; e < Lane::kCount; ++e) sums[e] += gradient[e];
    }
  }
};

template <class Element, bool kWhole, bool kActivated>
__global__ void __launch_bounds__(Config::kThreads, Config::kPerSm)
    gradient_kernel(const __grid_constant__ Params params) {
  constexpr int kCount = Row<Element, kWhole>::kCount, kStrip = 32 * kCount;
  __shared__ float shared[Config::kWarps][kStrip];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t col = std::int64_t{blockIdx.x} * kStrip + lane * kCount;
  ptx::let_next_kernel_begin();

  float sums[kCount] = {};
  if (col < params.cols && params.rows > 0) {
    const std::int64_t groups = (params.rows + Config::kGroupRows - 1) / Config::kGroupRows;
    std::int64_t group = groups - 1 - blockIdx.y;
    Group<Element, kWhole, kActivated> now, next;
    now.load(params, group, col);
    while (group >= 0) {
      // Load the next group before this one is processed.
      const std::int64_t following = group - gridDim.y;
      next.load(params, following, col);
      now.finish(params, group, col, sums);
      now = next;
      group = following;
    }
  }
  if (params.sums == nullptr && params.dbias == nullptr) return;

#pragma unroll
  // Add up the warps' sums. Their columns are permuted, which avoids bank conflicts.
  for (int e = 0; e < kCount; ++e) shared[warp][e * 32 + lane] = sums[e];
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

/// dbias <- the column sums of `sums`, which is [pieces, cols].
template <class Element>
__global__ void __launch_bounds__(32 * Config::kSumRows)
    pieces_kernel(const float* sums, std::int64_t pieces, std::int64_t cols, void* dbias) {
  __shared__ float shared[Config::kSumRows][32];
  ptx::wait_for_earlier_kernels();
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < cols) {
#pragma unroll 4
    for (std::int64_t piece = threadIdx.y; piece < pieces; piece += Config::kSumRows)
      sum += ptx::ld_global(sums + piece * cols + column);
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int r = 1; r < Config::kSumRows; ++r) sum += shared[r][threadIdx.x];
  static_cast<typename Element::Bits*>(dbias)[column] = Element::from_f32(sum);
}

}  // namespace sparseloom::kernels::cuda::activation_gradient
