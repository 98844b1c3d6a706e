// The n largest of each m consecutive elements of a row, of equal ones those with the lowest index.
//
//   vectors  m of 4, 8 or 16 in rows of whole groups and vectors: a thread has a group, or several, in
//            registers
//   lanes    m up to 32: a lane has an element
//   warps    m up to 256: a warp has a group in registers
//   blocks   larger m: a thread block has a group, in shared memory if that is at most 32 KiB
//
// A group is read once, except for blocks of more than 32 KiB, which are read once per 8 bits of a key, and
// once to take the elements that stay.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/sparsify/digit.cuh"
#include "kernels/shared/sparsify/reader.cuh"

namespace sparseloom::kernels::cuda::sparsify {

/// Groups [rows, across]; the last one of a row may be incomplete.
struct Groups {
  std::int64_t n, m, across, all;
};

/// The position of a group, and its number of elements.
template <class E>
struct Group {
  std::int64_t row, first, size;
  __device__ Group(const Matrix<E>& matrix, const Groups& groups, std::int64_t number) {
    row = quotient(number, groups.across);
    first = (number - row * groups.across) * groups.m;
    size = min(groups.m, matrix.cols - first);
  }
};

/// The key of an existing element, above that of absent ones.
template <class E>
__device__ __forceinline__ typename E::Key present_key(typename E::Word word, bool exists) {
  return exists ? key_of<E>(word) + 1 : 0;
}

/// Elements of a thread at a time: a group, or a unit of several groups.
template <class E, int kM>
inline constexpr int kSpan = kM > Unit<E, true>::kCount ? kM : Unit<E, true>::kCount;

template <class E, int kM>
__global__ void __launch_bounds__(kThreads, sizeof(typename E::Key) == 8 || kM == 16 ? 1 : 2)
    nm_vectors_kernel(const __grid_constant__ Matrix<E> matrix, int n, std::int64_t spans) {
  using R = Reader<E, true>;
  constexpr int kCount = R::U::kCount, kUnits = kSpan<E, kM> / kCount;
  R reader(matrix);
  for (std::int64_t span = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; span < spans;
       span += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t i = span * kSpan<E, kM>;
    typename R::U units[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) units[u] = reader.load(i + u * kCount);
    typename E::Key keys[kSpan<E, kM>];
#pragma unroll
    for (int k = 0; k < kSpan<E, kM>; ++k) keys[k] = key_of<E>(units[k / kCount].element[k % kCount]);
    unsigned stay = 0;
#pragma unroll
    for (int k = 0; k < kSpan<E, kM>; ++k) {
      const int begin = k / kM * kM;
      int above = 0;
#pragma unroll
      for (int j = begin; j < begin + kM; ++j) above += j < k ? keys[j] >= keys[k] : keys[j] > keys[k];
      stay |= static_cast<unsigned>(above < n) << k;
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) reader.store(i + u * kCount, units[u], stay >> (u * kCount));
  }
  reader.report();
}

/// Groups per lane at a time, one element of each.
inline constexpr int kGroupsEach = 4;

template <class E, int kLanes>
__global__ void __launch_bounds__(kThreads)
    nm_lanes_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Groups groups) {
  using R = Reader<E, false>;
  constexpr int kGroups = kThreads / kLanes;
  const int member = static_cast<int>(threadIdx.x) % kLanes;
  R reader(matrix);
  // All lanes stay in the loop together, because they compare with each other.
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kGroups * kGroupsEach; begin < groups.all;
       begin += std::int64_t{gridDim.x} * kGroups * kGroupsEach) {
    typename R::U units[kGroupsEach] = {};
    std::int64_t places[kGroupsEach];  // in the result; -1: this lane has no element
#pragma unroll
    for (int u = 0; u < kGroupsEach; ++u) {
      const std::int64_t number = begin + u * kGroups + threadIdx.x / kLanes;
      places[u] = -1;
      if (number >= groups.all) continue;
      const Group<E> group(matrix, groups, number);
      if (member >= group.size) continue;
      units[u].element[0] = reader.load_at(group.row, group.first + member);
      places[u] = group.row * matrix.cols + group.first + member;
    }
#pragma unroll
    for (int u = 0; u < kGroupsEach; ++u) {
      const typename E::Key key = present_key<E>(units[u].element[0], places[u] >= 0);
      int above = 0;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const typename E::Key other = __shfl_sync(kWarp, key, j, kLanes);
        above += other > key || (other == key && j < member);
      }
      if (places[u] >= 0) reader.store(places[u], units[u], above < groups.n ? 1u : 0u);
    }
  }
  reader.report();
}

/// kPer: elements per lane; a group has at most 32 kPer.
template <class E, int kPer>
__global__ void __launch_bounds__(kThreads)
    nm_warps_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Groups groups) {
  using R = Reader<E, false>;
  using Key = typename E::Key;
  const int lane = threadIdx.x % 32;
  R reader(matrix);
  for (std::int64_t number = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; number < groups.all;
       number += std::int64_t{gridDim.x} * kWarps) {
    const Group<E> group(matrix, groups, number);
    typename R::U units[kPer] = {};
    Key keys[kPer];
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const bool exists = k * 32 + lane < group.size;
      if (exists) units[k].element[0] = reader.load_at(group.row, group.first + k * 32 + lane);
      keys[k] = present_key<E>(units[k].element[0], exists);
    }
    const int wanted = static_cast<int>(min(groups.n, group.size));
    const auto count = [&](auto is) {
      int all = 0;
#pragma unroll
      for (int k = 0; k < kPer; ++k) all += __popc(__ballot_sync(kWarp, is(keys[k])));
      return all;
    };
    // The largest key that at least `wanted` keys reach.
    Key cut = 0;
    for (Key bit = Key{1} << (kKeyBits<E> - 1); bit != 0; bit >>= 1) {
      const Key trial = cut | bit;
      const int reach = count([=](Key key) { return key >= trial; });
      if (reach >= wanted) cut = trial;
      if (reach == wanted) break;
    }
    int ties = wanted - count([=](Key key) { return key > cut; });
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const unsigned equal = __ballot_sync(kWarp, keys[k] == cut);
      const int lower = __popc(equal & ((1u << lane) - 1));
      const bool stays = keys[k] > cut || (keys[k] == cut && lower < ties);
      ties -= __popc(equal);
      if (k * 32 + lane < group.size)
        reader.store(group.row * matrix.cols + group.first + k * 32 + lane, units[k], stays ? 1u : 0u);
    }
  }
  reader.report();
}

template <class E>
__global__ void __launch_bounds__(kThreads)
    nm_blocks_kernel(const __grid_constant__ Matrix<E> matrix, const __grid_constant__ Groups groups) {
  using R = Reader<E, false>;
  using Word = typename E::Word;
  constexpr int kHeld = (32 << 10) / static_cast<int>(sizeof(Word));
  __shared__ Word held[kHeld];
  __shared__ typename Digits<E>::Shared shared;
  __shared__ unsigned equals[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  R reader(matrix);
  for (std::int64_t number = blockIdx.x; number < groups.all; number += gridDim.x) {
    const Group<E> group(matrix, groups, number);
    const auto size = static_cast<unsigned>(group.size);
    const bool holds = size <= kHeld;
    __syncthreads();  // the group before has been read
    if (holds)
      for (unsigned i = threadIdx.x; i < size; i += kThreads)
        held[i] = reader.load_at(group.row, group.first + i);
    __syncthreads();
    const auto element = [&](unsigned i) {
      return holds ? held[i] : reader.load_at(group.row, group.first + i);
    };
    Digits<E> digits{0, static_cast<unsigned>(min(groups.n, group.size)), size, kKeyBits<E>};
    digits.search(shared, [&](const auto& count) {
      for (unsigned i = threadIdx.x; i < size; i += kThreads) count(key_of<E>(element(i)));
    });
    const bool all = digits.left == digits.count;
    unsigned ties = digits.left;  // elements equal to the last one that still may stay
    for (unsigned begin = 0; begin < size; begin += kThreads) {
      const unsigned i = begin + threadIdx.x;
      typename R::U unit = {};
      if (i < size) unit.element[0] = element(i);
      const typename E::Key key = key_of<E>(unit.element[0]);
      const bool equal = i < size && key == digits.prefix;
      bool stays = key > digits.prefix || (equal && all);
      if (!all) {
        const unsigned of_warp = __ballot_sync(kWarp, equal);
        if (lane == 0) equals[warp] = __popc(of_warp);
        __syncthreads();
        unsigned before = __popc(of_warp & ((1u << lane) - 1)), sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          before += w < warp ? equals[w] : 0;
          sum += equals[w];
        }
        stays |= equal && before < ties;
        ties -= min(ties, sum);
        __syncthreads();  // `equals` have been read
      }
      if (i < size) reader.store(group.row * matrix.cols + group.first + i, unit, stays ? 1u : 0u);
    }
  }
  reader.report();
}

}  // namespace sparseloom::kernels::cuda::sparsify
