// Forward and dX of many tokens: x of a tile of tokens is copied slab by slab into shared memory, transposed,
// and a thread block's rows of W multiply their stored elements there.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/csr_linear/sm80/element.cuh"
#include "kernels/csr_linear/sm80/slabs/shape.h"

namespace sparseloom::kernels::cuda::csr {

constexpr int kSlabThreads = 32 * slabs::kWarps;

template <class T>
struct SlabParams {
  Rows<T> out;
  const typename T::Bits* values;  // in the order of out.index
  slabs::Room room;
  int rows;  // rows of a thread block
  std::int64_t row_blocks;
};

/// A stored element in a warp's list: the byte offset of its feature in the slab, and its value.
struct Entry {
  unsigned offset;
  float weight;
};

/// Copies x of the features [begin, begin + features) and a tile's tokens, as [feature][token]; zero past the
/// ends.
template <class T, int kPerLane>
__device__ __forceinline__ void bring(const Rows<T>& p, std::int64_t begin, int features, std::int64_t token,
                                      typename T::Bits* slab) {
  using Bits = typename T::Bits;
  constexpr int kStride = slabs::kStride<kPerLane, sizeof(Bits)>;
  const int lane = threadIdx.x % 32;
  const int left = static_cast<int>(min(std::int64_t{features}, p.depth - begin)) - lane;
  for (int t = threadIdx.x / 32; t < 32 * kPerLane; t += slabs::kWarps) {
    const bool exists = token + t < p.m;
    const Bits* const from = p.a + (token + t) * p.a_stride + begin + lane;
    Bits* const to = slab + lane * kStride + t;
#pragma unroll 8
    for (int f = 0; f < features; f += 32) to[f * kStride] = exists && f < left ? from[f] : Bits{};
  }
}

/// Adds the first `count` elements of a list to the lane's tokens. Later ones, up to a multiple of four, are
/// zeros.
template <class T, int kPerLane>
__device__ __forceinline__ void add(const Entry* list, int count, const std::byte* slab,
                                    float (&sum)[kPerLane]) {
  struct alignas(16) Pair {
    Entry first, second;
  };
#pragma unroll 2
  for (int e = 0; e < count; e += 4) {
    const Pair a = *reinterpret_cast<const Pair*>(list + e), b = *reinterpret_cast<const Pair*>(list + e + 2);
    const Entry entries[4] = {a.first, a.second, b.first, b.second};
    float x[4][kPerLane];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load<T>(reinterpret_cast<const typename T::Bits*>(slab + entries[i].offset), x[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int t = 0; t < kPerLane; ++t) sum[t] = fmaf(x[i][t], entries[i].weight, sum[t]);
  }
}

/// Multiplies the slab whose features end at `slab_end` with the warp's rows, which continue at next[row] and
/// end at end[row]. The next elements are in flight while some are multiplied.
template <class T, int kPerLane>
__device__ __forceinline__ void multiply(const SlabParams<T>& p, std::int64_t slab_begin, int count_rows,
                                         std::int32_t* next, const std::int32_t* end, Entry* list,
                                         const std::byte* slab, float* sums) {
  constexpr int kFeatureBytes =
      slabs::kStride<kPerLane, sizeof(typename T::Bits)> * int{sizeof(typename T::Bits)};
  const int lane = threadIdx.x % 32, features = p.room.features;
  const std::byte* const lane_slab = slab + lane * kPerLane * int{sizeof(typename T::Bits)};
  int row = threadIdx.x / 32;
  if (row >= count_rows) return;
  std::int32_t at = next[row], last = end[row];
  int feature = INT_MAX;
  typename T::Bits value{};
  const auto fetch = [&] {
    const bool exists = lane < last - at;
    const std::int64_t element = std::int64_t{at} + lane;
    // A row's elements have ascending features, so those of this slab come first.
    feature = exists ? static_cast<int>(p.out.index[element] - slab_begin) : INT_MAX;
    if (exists) value = p.values[element];
  };
  fetch();
  float sum[kPerLane] = {};
  while (true) {
    const bool inside = feature < features;
    const int count = __popc(__ballot_sync(~0u, inside));
    list[lane] = inside ? Entry{static_cast<unsigned>(feature * kFeatureBytes), T::widen(value)}
                        : Entry{static_cast<unsigned>(features * kFeatureBytes), 0.0f};
    const int of = row;
    at += count;
    const bool row_ends = count < 32;
    if (row_ends) {
      if (lane == 0) next[row] = at;
      row += slabs::kWarps;
      if (row < count_rows) at = next[row], last = end[row];
    }
    if (row < count_rows) fetch();
    __syncwarp();
    add<T, kPerLane>(list, count, lane_slab, sum);
    __syncwarp();
    if (!row_ends) continue;
    auto& to =
        *reinterpret_cast<Stretch<F32, kPerLane>*>(sums + of * slabs::kSumStride<kPerLane> + lane * kPerLane);
    Stretch<F32, kPerLane> all = to;
#pragma unroll
    for (int t = 0; t < kPerLane; ++t) all.element[t] += sum[t], sum[t] = 0;
    to = all;
    if (row >= count_rows) return;
  }
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(kSlabThreads, 2) slab_kernel(const SlabParams<T> p) {
  extern __shared__ __align__(16) std::byte shared[];
  constexpr int kSumStride = slabs::kSumStride<kPerLane>;
  const int warp = threadIdx.x / 32;
  const std::int64_t first = blockIdx.x % p.row_blocks * p.rows,
                     token = blockIdx.x / p.row_blocks * (32 * kPerLane);
  const int count_rows = static_cast<int>(min(std::int64_t{p.rows}, p.out.rows - first));
  auto* const list = reinterpret_cast<Entry*>(shared) + warp * 32;
  auto* const sums = reinterpret_cast<float*>(shared + p.room.sums);
  auto* const next = reinterpret_cast<std::int32_t*>(shared + p.room.rows);
  auto* const slab = shared + p.room.slab;
  auto* const elements = reinterpret_cast<typename T::Bits*>(slab);
  for (int i = threadIdx.x; i < p.rows * kSumStride; i += kSlabThreads) sums[i] = 0;
  for (int i = threadIdx.x; i < count_rows; i += kSlabThreads) {
    next[i] = p.out.begin[first + i];
    next[p.rows + i] = p.out.begin[first + i + 1];
  }
  constexpr int kStride = slabs::kStride<kPerLane, sizeof(typename T::Bits)>;
  if (threadIdx.x < kStride) elements[p.room.features * kStride + threadIdx.x] = typename T::Bits{};
  for (std::int64_t begin = 0; begin < p.out.depth; begin += p.room.features) {
    __syncthreads();
    bring<T, kPerLane>(p.out, begin, p.room.features, token, elements);
    __syncthreads();
    multiply<T, kPerLane>(p, begin, count_rows, next, next + p.rows, list, slab, sums);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count_rows * 32 * kPerLane; i += kSlabThreads) {
    const int row = i % count_rows, t = i / count_rows;  // neighbouring threads write neighbouring outputs
    if (token + t < p.out.m) p.out.write(token + t, first + row, sums[row * kSumStride + t]);
  }
}

}  // namespace sparseloom::kernels::cuda::csr
