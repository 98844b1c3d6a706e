// The key of the last element that stays, found by counting the leading bits of all keys.
//
//   a pass over the matrix counts 15 bits of the keys -> the thread block that ends last finds the bin of the
//   last element that stays
//
// f16 and bf16 have no more bits. For f32 and f64 another pass follows if more elements share these bits than
// the list of candidates can hold (take.cuh); otherwise the next passes return at once. Only counts pass
// through atomics, so that nothing depends on the order of threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/sparsify/reader.cuh"

namespace sparseloom::kernels::cuda::sparsify {

inline constexpr int kBinBits = 15, kBins = 1 << kBinBits;
/// Counters of 16 bits, two to a word.
inline constexpr int kBinWords = kBins / 2, kBinBytes = kBinWords * 4;

/// Shared by the thread block, [kBinWords]. Here rather than in the kernel, so that it also compiles for the
/// CPU.
extern __shared__ std::uint32_t packed[];

/// The known bits of the last element that stays.
struct Choice {
  unsigned long long prefix;  // its key without the lowest `shift` bits
  std::int64_t left, count;   // elements with this prefix that stay, and all with this prefix
  int shift;
  std::int64_t listed, last;  // candidates, and the index of the last one that stays
};

/// Counters that thread blocks advance while others read the choice.
struct Tickets {
  unsigned long long next;  // the next tile to take
  unsigned arrived;         // thread blocks that have finished counting
};

/// A search of the `wanted` elements with the largest keys. capacity: candidates that the list can hold.
struct Search {
  Choice* choice;  // zero before the first pass, like the members below
  Tickets* tickets;
  unsigned long long* bins;    // [kBins]
  unsigned long long* status;  // status of each tile, see take.cuh
  void* words;                 // the list: elements, and their indices
  std::int64_t* places;
  std::int64_t wanted, capacity;
};

/// Whether the choice is known, or small enough for the list.
__device__ __forceinline__ bool is_settled(const Choice& choice, std::int64_t capacity) {
  return choice.shift == 0 || choice.left == choice.count || choice.count <= capacity;
}

/// Adds the packed counters to the global ones and clears them. All threads call it.
__device__ __forceinline__ void flush(unsigned long long* bins, unsigned& lowest) {
  __syncthreads();
  for (int w = threadIdx.x; w < kBinWords; w += kThreads) {
    const std::uint32_t two = packed[w];
    if (two == 0) continue;
    packed[w] = 0;
    if ((two & 0xffffu) != 0) atomicAdd(bins + 2 * w, static_cast<unsigned long long>(two & 0xffffu));
    if (two >> 16 != 0) atomicAdd(bins + 2 * w + 1, static_cast<unsigned long long>(two >> 16));
  }
  const unsigned all = warp_sum(lowest);
  if (threadIdx.x % 32 == 0 && all != 0) atomicAdd(bins, static_cast<unsigned long long>(all));
  lowest = 0;
  __syncthreads();
}

/// Finds the bin of the last of choice.left elements, from the highest bin down. One thread block.
__device__ __forceinline__ void find_bin(const Search& search, Choice before, int digit) {
  constexpr int kRow = 64, kRows = kBins / kRow;
  static_assert(kRows == kThreads, "each row of bins has a thread");
  __shared__ std::int64_t rows[kRows], warps[kWarps];
  __shared__ int row;
  __shared__ std::int64_t above;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 4
  for (int r = warp; r < kRows; r += kWarps) {
    const ulonglong2 two = __ldcg(reinterpret_cast<const ulonglong2*>(search.bins + r * kRow) + lane);
    const auto sum = static_cast<std::int64_t>(warp_sum(two.x + two.y));
    if (lane == 0) rows[r] = sum;
  }
  __syncthreads();
  const std::int64_t own = rows[kRows - 1 - threadIdx.x];
  std::int64_t through = sum_through(own);
  if (lane == 31) warps[warp] = through;
  __syncthreads();
  for (int w = 0; w < warp; ++w) through += warps[w];
  if (through - own < before.left && before.left <= through)
    row = kRows - 1 - static_cast<int>(threadIdx.x), above = through - own;
  __syncthreads();
  if (warp == 0) {
    const int top = row * kRow + kRow - 1 - 2 * lane;
    const auto first = static_cast<std::int64_t>(__ldcg(search.bins + top)),
               second = static_cast<std::int64_t>(__ldcg(search.bins + top - 1));
    const std::int64_t to = above + sum_through(first + second), from = to - first - second;
    if (from < before.left && before.left <= to) {
      const bool is_first = before.left <= from + first;
      Choice& choice = *search.choice;
      choice.prefix = before.prefix << digit | static_cast<unsigned>(is_first ? top : top - 1);
      choice.left = before.left - from - (is_first ? 0 : first);
      choice.count = is_first ? first : second;
      choice.shift = before.shift - digit;
      atomicExch(&search.tickets->arrived, 0u);
    }
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) search.bins[bin] = 0;
}

/// kFirst: nothing is known yet.
template <class E, bool kVectors, bool kFirst>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Search search,
                 std::int64_t tiles) {
  using R = Reader<E, kVectors>;
  __shared__ bool is_last;
  // The most that a 16-bit counter can count: every element may be alike.
  constexpr int kTilesHeld = 0xffff / kTile<E, kVectors>;
  const Choice before = kFirst ? Choice{0, search.wanted, matrix.count(), kKeyBits<E>, 0, 0} : *search.choice;
  if (!kFirst && is_settled(before, search.capacity)) return;
  const int digit = before.shift < kBinBits ? before.shift : kBinBits, shift = before.shift - digit;
  for (int w = threadIdx.x; w < kBinWords; w += kThreads) packed[w] = 0;
  __syncthreads();
  R reader(matrix);
  unsigned lowest = 0;  // elements of bin 0, which zeros may fill
  int held = 0;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    typename R::U units[kEach<kVectors>];
    reader.load_tile(tile, units);
#pragma unroll
    for (int u = 0; u < kEach<kVectors>; ++u) {
      const std::int64_t left = matrix.count() - R::place(tile, u);
#pragma unroll
      for (int e = 0; e < R::U::kCount; ++e) {
        const typename E::Key key = key_of<E>(units[u].element[e]);
        if (e >= left || (!kFirst && key >> before.shift != before.prefix)) continue;
        const auto bin = static_cast<unsigned>(key >> shift) & ((1u << digit) - 1);
        if (bin == 0)
          ++lowest;
        else
          atomicAdd(packed + bin / 2, bin % 2 != 0 ? 0x10000u : 1u);
      }
    }
    if (++held == kTilesHeld) flush(search.bins, lowest), held = 0;
  }
  flush(search.bins, lowest);
  reader.report();
  __threadfence();  // the counts of this thread before its thread block's arrival
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&search.tickets->arrived, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  find_bin(search, before, digit);
}

}  // namespace sparseloom::kernels::cuda::sparsify
