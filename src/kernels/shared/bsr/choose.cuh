// Chooses the next blocks on the device: the best of the stored ones stay, the best other cells grow.
//
//   scores -> is any NaN? -> histogram of 8 bits of the keys, four times -> the key of the last one that is
//   taken, and the number of its equals -> mask bytes, in index order; then the same for growth
//
// There is one thread block: a choice is made once in a hundred steps, of a few thousand cells, and a grid
// would have to synchronise after each histogram. Only counts pass through atomics, and equal keys are taken
// in index order by prefix sums, so that nothing depends on the order of threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "layout/moving.h"
#include "sparseloom/topology.h"

namespace sparseloom::kernels::cuda::choose {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = 256;
inline constexpr unsigned kWarp = 0xffffffffu;

struct Params {
  BlockChoice choice;
  std::uint8_t* mask;
  std::int32_t* flags;
};

struct SharedStorage {
  std::int32_t bins[kBins];
  std::int32_t warp_sums[kWarps + 1];
  std::uint32_t key;  // the leading bits of the last key that is taken
  std::int32_t left;  // entries with these leading bits that are taken
};

/// Ordered like floats, and never 0. Both zeros have one key.
__device__ __forceinline__ std::uint32_t key_of(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// Returns the sum of `own` over the lower threads, and that of all threads. All threads call it.
struct Sums {
  std::int32_t before, all;
};
__device__ __forceinline__ Sums sums_of(std::int32_t own, SharedStorage& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t through = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  __syncthreads();  // the previous call's sums have been read
  if (lane == 31) shared.warp_sums[warp] = through;
  __syncthreads();
  if (warp == 0) {
    const std::int32_t warp_sum = shared.warp_sums[lane];
    std::int32_t sum = warp_sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t lower = __shfl_up_sync(kWarp, sum, distance);
      if (lane >= distance) sum += lower;
    }
    shared.warp_sums[lane] = sum - warp_sum;
    if (lane == 31) shared.warp_sums[kWarps] = sum;
  }
  __syncthreads();
  return {shared.warp_sums[warp] + through - own, shared.warp_sums[kWarps]};
}

/// Warp 0 walks the bins from the highest one down, to the bin of the last of `left` entries.
__device__ __forceinline__ void find_bin(SharedStorage& shared) {
  constexpr int kEach = kBins / 32;
  const int lane = threadIdx.x, top = kBins - 1 - lane * kEach;
  std::int32_t own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) own += shared.bins[top - i];
  std::int32_t through = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  const std::int32_t left = shared.left;
  __syncwarp();  // all lanes have read it
  std::int32_t before = through - own;
  if (before >= left || through < left) return;
  int bin = top;
  for (; before + shared.bins[bin] < left; --bin) before += shared.bins[bin];
  shared.key = shared.key << 8 | static_cast<std::uint32_t>(bin);
  shared.left = left - before;
}

/// Calls take(i) for the `count` of n entries with the highest keys, of equal ones the lowest; an entry with
/// key(i) == 0 must not be taken. All threads call it.
template <class Key, class Take>
__device__ __forceinline__ void take_best(std::int32_t n, std::int32_t count, SharedStorage& shared, Key key,
                                          Take take) {
  std::int32_t own = 0;
  for (std::int32_t i = threadIdx.x; i < n; i += kThreads) own += key(i) != 0;
  const std::int32_t allowed = sums_of(own, shared).all;
  if (count <= 0) return;
  if (count >= allowed) {
    for (std::int32_t i = threadIdx.x; i < n; i += kThreads)
      if (key(i) != 0) take(i);
    return;
  }
  if (threadIdx.x == 0) shared.key = 0, shared.left = count;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    const std::uint32_t leading = shared.key;
    for (std::int32_t i = threadIdx.x; i < n; i += kThreads) {
      const std::uint32_t bits = key(i);
      if (bits != 0 && (shift == 24 || bits >> (shift + 8) == leading))
        atomicAdd(&shared.bins[bits >> shift & (kBins - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) find_bin(shared);
    __syncthreads();
  }
  const std::uint32_t last = shared.key;
  const std::int32_t equals = shared.left;
  std::int32_t met = 0;
#pragma unroll 1
  for (std::int32_t base = 0; base < n; base += kThreads) {
    const std::int32_t i = base + static_cast<std::int32_t>(threadIdx.x);
    const std::uint32_t bits = i < n ? key(i) : 0;
    const Sums sums = sums_of(bits == last, shared);
    if (bits > last || (bits == last && met + sums.before < equals)) take(i);
    met += sums.all;
  }
}

/// The cell of a stored block; -1 if the index has none.
__device__ __forceinline__ std::int32_t cell_of(const BlockChoice& choice, std::int32_t slot) {
  auto low = std::int32_t{0}, high = static_cast<std::int32_t>(choice.block_rows);
  while (high - low > 1) {  // crow[low] <= slot
    const std::int32_t middle = low + (high - low) / 2;
    (choice.crow[middle] <= slot ? low : high) = middle;
  }
  const std::int32_t c = choice.col[slot], cols = static_cast<std::int32_t>(choice.block_cols);
  return c >= 0 && c < cols ? low * cols + c : -1;
}

__global__ void __launch_bounds__(kThreads) choose_kernel(const __grid_constant__ Params params) {
  __shared__ SharedStorage shared;
  const BlockChoice& choice = params.choice;
  const auto cells = static_cast<std::int32_t>(choice.block_rows * choice.block_cols),
             capacity = static_cast<std::int32_t>(choice.capacity);
  const std::int32_t live = max(0, min(choice.crow[choice.block_rows], capacity));
  bool nan = false, infinite = false;
  for (std::int32_t i = threadIdx.x; i < live; i += kThreads) nan |= isnan(choice.scores[i]);
  for (std::int32_t i = threadIdx.x; i < cells; i += kThreads) {
    if (choice.growth != nullptr) infinite |= !(choice.growth[i] < __int_as_float(0x7f800000));
    params.mask[i] = 0;
  }
  const bool any_nan = __syncthreads_or(nan) != 0, any_infinite = __syncthreads_or(infinite) != 0;
  const auto keep = [&](std::int32_t slot) {
    if (const std::int32_t cell = cell_of(choice, slot); cell >= 0) params.mask[cell] = 1;
  };
  if (any_nan || any_infinite) {
    for (std::int32_t slot = threadIdx.x; slot < live; slot += kThreads) keep(slot);
    if (threadIdx.x == 0)
      *params.flags |= (any_nan ? kTopologyNaN : 0) | (any_infinite ? kTopologyNoGradient : 0);
    return;
  }
  const layout::Counts counts = layout::counts_of(choice.budget, live, cells, choice.growth != nullptr);
  take_best(
      live, static_cast<std::int32_t>(counts.keep), shared,
      [&](std::int32_t slot) { return key_of(choice.scores[slot]); }, keep);
  if (choice.growth == nullptr) return;
  __syncthreads();  // the mask has all blocks that stay
  take_best(
      cells, static_cast<std::int32_t>(counts.all - counts.keep), shared,
      [&](std::int32_t i) {
        const float value = choice.growth[i];
        return params.mask[i] == 0 && value > -__int_as_float(0x7f800000) ? key_of(value) : 0u;
      },
      [&](std::int32_t i) { params.mask[i] = 1; });
}

}  // namespace sparseloom::kernels::cuda::choose
