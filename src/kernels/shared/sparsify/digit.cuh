// Search of a thread block for the last of the largest keys, 8 bits at a time, by counts in shared memory.
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/sparsify/element.cuh"

namespace sparseloom::kernels::cuda::sparsify {

inline constexpr int kDigit = 8, kDigits = 1 << kDigit;

/// A search of the `left` largest of `count` keys that begin with `prefix`, the bits above the lowest
/// `shift`.
template <class E>
struct Digits {
  using Key = typename E::Key;
  struct Shared {
    unsigned bins[kDigits];
    unsigned long long prefix;
    unsigned left, count;
  };
  Key prefix;
  unsigned left, count;
  int shift;

  /// Determines all bits. each(f) calls f(key) for this thread's keys; all threads call it together.
  template <class Each>
  __device__ __forceinline__ void search(Shared& shared, const Each& each) {
    while (shift > 0) {
      const int digit = shift < kDigit ? shift : kDigit, next = shift - digit;
      for (unsigned bin = threadIdx.x; bin < kDigits; bin += blockDim.x) shared.bins[bin] = 0;
      __syncthreads();
      each([&](Key key) {
        if (key >> shift == prefix)
          atomicAdd(shared.bins + (static_cast<unsigned>(key >> next) & ((1u << digit) - 1)), 1u);
      });
      __syncthreads();
      if (threadIdx.x < 32) find(shared, digit);
      __syncthreads();
      // Two barriers precede the next writes of the values read here.
      prefix = static_cast<Key>(shared.prefix), left = shared.left, count = shared.count, shift = next;
    }
  }

 private:
  /// One warp; a lane has 8 bins, the first lane the highest.
  __device__ __forceinline__ void find(Shared& shared, int digit) const {
    constexpr int kBinsEach = kDigits / 32;
    const int top = kDigits - 1 - static_cast<int>(threadIdx.x) * kBinsEach;
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) own += shared.bins[top - i];
    unsigned before = sum_through(own) - own;
    if (before >= left || left > before + own) return;
    int bin = top;
    for (; before + shared.bins[bin] < left; --bin) before += shared.bins[bin];
    shared.prefix = static_cast<unsigned long long>(prefix) << digit | static_cast<unsigned>(bin);
    shared.left = left - before, shared.count = shared.bins[bin];
  }
};

}  // namespace sparseloom::kernels::cuda::sparsify
