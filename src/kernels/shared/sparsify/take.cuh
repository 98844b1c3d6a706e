// Takes the elements that a choice (choice.cuh) keeps, of equal elements those with the lowest index.
//
//   take     a pass over the matrix: elements above the prefix stay; those with the prefix have a rank in
//            index order, which decides if keys are known, and otherwise is their index in a list
//   finish   one thread block finds the last element of the list that stays
//   scatter  writes the elements of the list that stay
//
// Ranks come from a single-pass scan with decoupled look-back (Merrill & Garland 2016): a tile publishes its
// number of elements with the prefix, and adds up the numbers of the previous tiles. Tiles are taken by a
// counter, so that all earlier tiles are done or running and no thread block waits for one that is not
// resident.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/shared/sparsify/choice.cuh"
#include "kernels/shared/sparsify/digit.cuh"

namespace sparseloom::kernels::cuda::sparsify {

/// A tile's status: a flag in two bits, and a count. 0: nothing is known yet.
inline constexpr unsigned long long kOwn = 1ull << 62;      // the count is the tile's own
inline constexpr unsigned long long kThrough = 2ull << 62;  // it includes all previous tiles
inline constexpr unsigned long long kCountBits = kOwn - 1;

/// Publishes a tile's own count and returns that of all previous tiles. One warp; only these words pass
/// between thread blocks, so no fence is needed.
__device__ __forceinline__ unsigned long long count_before(unsigned long long* status, std::int64_t tile,
                                                           unsigned long long own) {
  const int lane = threadIdx.x % 32;
  if (lane == 0) atomicExch(status + tile, (tile == 0 ? kThrough : kOwn) | own);
  unsigned long long before = 0;
  bool done = tile == 0;
  for (std::int64_t first = tile - 1; !done; first -= 32) {
    const std::int64_t at = first - lane;
    unsigned long long word = kThrough;  // no tile precedes the first
    while (at >= 0 && ((word = atomicAdd(status + at, 0ull)) & ~kCountBits) == 0) __nanosleep(32);
    const unsigned through = __ballot_sync(kWarp, (word & kThrough) != 0);
    const int nearest = through != 0 ? __ffs(static_cast<int>(through)) - 1 : 31;
    before += lane <= nearest ? word & kCountBits : 0;
    done = through != 0;
  }
  before = warp_sum(before);
  if (lane == 0 && tile != 0) atomicExch(status + tile, kThrough | (before + own));
  return before;
}

/// Writes the open elements of this thread's units to the list from `base` on, which has `room` entries left.
template <class E, bool kVectors, class Lower>
__device__ __forceinline__ void list_open(const Search& search, std::int64_t base, int room,
                                          std::int64_t tile,
                                          const Unit<E, kVectors> (&units)[kEach<kVectors>],
                                          const unsigned (&open)[kEach<kVectors>], const Lower& lower_of) {
  auto* const words = static_cast<typename E::Word*>(search.words) + base;
  std::int64_t* const places = search.places + base;
#pragma unroll
  for (int u = 0; u < kEach<kVectors>; ++u) {
    if (open[u] == 0) continue;
    const std::int64_t first = Reader<E, kVectors>::place(tile, u);
    auto rank = static_cast<int>(lower_of(u));
#pragma unroll
    for (int e = 0; e < Unit<E, kVectors>::kCount; ++e) {
      if ((open[u] >> e & 1u) == 0) continue;
      if (rank < room) words[rank] = units[u].element[e], places[rank] = first + e;
      ++rank;
    }
  }
}

template <class E, bool kVectors>
__global__ void __launch_bounds__(kThreads, 2)
    take_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Search search,
                std::int64_t tiles) {
  using R = Reader<E, kVectors>;
  using Packed = std::conditional_t<kEach<kVectors> == 2, unsigned, unsigned long long>;
  __shared__ Packed totals[kWarps];  // 16 bits per unit of a thread
  __shared__ unsigned long long before;
  __shared__ std::int64_t taken;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Choice choice = *search.choice;
  const auto prefix = static_cast<typename E::Key>(choice.prefix);
  // For 16-bit types all bits are known.
  const bool ranks = choice.left != choice.count,
             listed = kKeyBits<E> > kBinBits && ranks && choice.shift != 0;
  R reader(matrix);
  for (;;) {
    if (threadIdx.x == 0) taken = static_cast<std::int64_t>(atomicAdd(&search.tickets->next, 1ull));
    __syncthreads();
    const std::int64_t tile = taken;
    if (tile >= tiles) break;
    typename R::U units[kEach<kVectors>];
    reader.load_tile(tile, units);
    unsigned stay[kEach<kVectors>], open[kEach<kVectors>];  // above the prefix, and equal to it
    Packed own = 0;
#pragma unroll
    for (int u = 0; u < kEach<kVectors>; ++u) {
      const std::int64_t left = matrix.count() - R::place(tile, u);
      stay[u] = open[u] = 0;
#pragma unroll
      for (int e = 0; e < R::U::kCount; ++e) {
        const typename E::Key leading = key_of<E>(units[u].element[e]) >> choice.shift;
        stay[u] |= static_cast<unsigned>(leading > prefix) << e;
        open[u] |= static_cast<unsigned>(leading == prefix && e < left) << e;
      }
      own |= static_cast<Packed>(__popc(open[u])) << (16 * u);
    }
    if (ranks) {
      const Packed through = sum_through(own);
      if (lane == 31) totals[warp] = through;
      __syncthreads();
      Packed all = 0, lower = through - own;
#pragma unroll 4
      for (int w = 0; w < kWarps; ++w) {
        all += totals[w];
        lower += w < warp ? totals[w] : 0;
      }
      unsigned start[kEach<kVectors> + 1] = {};  // rank of each unit's first element, and the tile's end
#pragma unroll
      for (int u = 0; u < kEach<kVectors>; ++u) start[u + 1] = start[u] + (all >> (16 * u) & 0xffffu);
      if (warp == 0) {
        const unsigned long long sum = count_before(search.status, tile, start[kEach<kVectors>]);
        if (lane == 0) before = sum;
      }
      __syncthreads();
      // From here on ranks count from the tile's first, in 32 bits.
      const auto lower_of = [&](int u) {
        return start[u] + static_cast<unsigned>(lower >> (16 * u) & 0xffffu);
      };
      const auto base = static_cast<std::int64_t>(before);
      const auto room = static_cast<int>(
          max(min((listed ? search.capacity : choice.left) - base, std::int64_t{kTile<E, kVectors>}),
              std::int64_t{0}));
      if (listed) {
        list_open<E, kVectors>(search, base, room, tile, units, open, lower_of);
      } else {
#pragma unroll
        for (int u = 0; u < kEach<kVectors>; ++u) {
          auto rank = static_cast<int>(lower_of(u));
#pragma unroll
          for (int e = 0; e < R::U::kCount; ++e) {
            const unsigned is_open = open[u] >> e & 1u;
            if (rank < room) stay[u] |= is_open << e;
            rank += static_cast<int>(is_open);
          }
        }
      }
    } else {
#pragma unroll
      for (int u = 0; u < kEach<kVectors>; ++u) stay[u] |= open[u];
      __syncthreads();  // `taken` has been read
    }
#pragma unroll
    for (int u = 0; u < kEach<kVectors>; ++u)
      if (const std::int64_t i = R::place(tile, u); i < matrix.count()) reader.store(i, units[u], stay[u]);
  }
  reader.report();
}

inline constexpr int kFinishThreads = 1024, kFinishWarps = kFinishThreads / 32;

/// Finds which candidates stay: choice.listed, .prefix (a whole key) and .last.
template <class E>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ Search search) {
  using Key = typename E::Key;
  __shared__ typename Digits<E>::Shared shared;
  __shared__ unsigned warps[kFinishWarps];
  const Choice choice = *search.choice;
  if (choice.shift == 0 || choice.left == choice.count) return;
  const auto* words = static_cast<const typename E::Word*>(search.words);
  const auto listed = static_cast<int>(choice.count < search.capacity ? choice.count : search.capacity);
  Digits<E> digits{static_cast<Key>(choice.prefix), static_cast<unsigned>(choice.left),
                   static_cast<unsigned>(listed), choice.shift};
  digits.search(shared, [&](const auto& count) {
    for (int i = threadIdx.x; i < listed; i += kFinishThreads) count(key_of<E>(words[i]));
  });
  if (threadIdx.x == 0) {
    search.choice->prefix = digits.prefix, search.choice->listed = listed;
    if (digits.left == digits.count) search.choice->last = listed;
  }
  if (digits.left == digits.count) return;
  // The list is in index order, so the first of equal keys stay.
  const int per_thread = (listed + kFinishThreads - 1) / kFinishThreads,
            begin = min(static_cast<int>(threadIdx.x) * per_thread, listed),
            end = min(begin + per_thread, listed);
  unsigned own = 0;
  for (int i = begin; i < end; ++i) own += key_of<E>(words[i]) == digits.prefix;
  unsigned through = sum_through(own);
  if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = through;
  __syncthreads();
  for (unsigned w = 0; w < threadIdx.x / 32; ++w) through += warps[w];
  unsigned before = through - own;
  if (before >= digits.left || through < digits.left) return;
  for (int i = begin;; ++i) {
    before += key_of<E>(words[i]) == digits.prefix;
    if (before < digits.left) continue;
    search.choice->last = i;
    return;
  }
}

template <class E>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Search search) {
  const Choice choice = *search.choice;
  const auto* words = static_cast<const typename E::Word*>(search.words);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < choice.listed;
       i += std::int64_t{gridDim.x} * kThreads) {
    const typename E::Word word = words[i];
    const unsigned long long key = key_of<E>(word);
    if (key < choice.prefix || (key == choice.prefix && i > choice.last)) continue;
    const std::int64_t place = search.places[i];
    if (matrix.mask != nullptr) matrix.mask[place] = 1;
    if (matrix.values != nullptr) matrix.values[place] = word;
  }
}

}  // namespace sparseloom::kernels::cuda::sparsify
