// How sm90_shares divides the stored blocks, as in stream-K. Strips of at most 64 outputs, or 128 (see
// size_of), are cut into pieces: a block's outputs in the strip x at most 64 elements of the reduction.
//
//   units of cost   |e p p p p p p|e p|e|e p p p p p p p p|..    e: a strip's end, p: a piece; one unit each
//   shares           0 0 0 0 0 1 1 1 1 1 2 2 2 2 2 3 3 3 ..      the same number of units each
//
// A strip is complete if one share holds all its pieces. Otherwise it is cut: the share with its first pieces
// adds the sums that the others leave in the workspace (store.cuh). The end of a strip counts as a unit so
// that block rows without blocks are assigned too.
#pragma once

#include "kernels/bsr_linear/sm90/shares/params.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::shares {

/// The list pointers of consecutive block rows, kept in shared memory; others are read from global memory.
struct Lists {
  static constexpr int kWindow = 768;
  const std::int32_t* begin;  // all of them, in global memory
  const std::int32_t* window;
  int first = 0;

  __device__ __forceinline__ std::int32_t at(int block_row) const {
    const int i = block_row - first;
    return i >= 0 && i < kWindow ? window[i] : ptx::ld_global(begin + block_row);
  }
};

/// Units before a block row, given the number of blocks before it.
__device__ __forceinline__ int cost_before(const Params& params, int block_row, std::int32_t blocks) {
  return ((blocks << params.pieces_log2) + block_row) << params.strips_log2;
}

/// The shares, whose sizes differ by at most one: the longer ones first.
struct Cut {
  int length, longer;  // units of a share; `longer` shares have one more

  __device__ __forceinline__ Cut(int units, int shares)
      : length(static_cast<int>(static_cast<unsigned>(units) / static_cast<unsigned>(shares))),
        longer(units - length * shares) {}
  __device__ __forceinline__ int begin(int share) const { return share * length + min(share, longer); }
  /// The share that holds a unit.
  __device__ __forceinline__ int owner(int unit) const {
    const auto longs = static_cast<unsigned>(longer) * static_cast<unsigned>(length + 1),
               u = static_cast<unsigned>(unit);
    return static_cast<int>(u < longs ? u / static_cast<unsigned>(length + 1)
                                      : static_cast<unsigned>(longer) +
                                            (u - longs) / static_cast<unsigned>(length));
  }
};

/// Fills the window if all lists fit, otherwise nothing. All threads call it.
template <int kThreads>
__device__ __forceinline__ void copy_lists(const Params& params, std::int32_t* window) {
  if (params.block_rows >= Lists::kWindow) return;
  constexpr int kTurns = (Lists::kWindow + kThreads - 1) / kThreads;
  std::int32_t lists[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    lists[i] = ptx::ld_global_if(at <= params.block_rows, params.list_begin + at);
  }
#pragma unroll
  for (int i = 0; i < kTurns; ++i)
    if (const int at = i * kThreads + static_cast<int>(threadIdx.x); at <= params.block_rows)
      window[at] = lists[i];
  __syncthreads();
}

/// The last block row whose units begin at or before `unit`. All threads call it; each round narrows the
/// search to one of kThreads ranges.
template <int kThreads>
__device__ __forceinline__ int find_block_row(const Params& params, const Lists& lists, int unit) {
  int low = 0, count = params.block_rows;
  while (count > 1) {
    const int step = (count + kThreads - 1) / kThreads, i = static_cast<int>(threadIdx.x) * step;
    const bool before = i < count && cost_before(params, low + i, lists.at(low + i)) <= unit;
    const int range = (__syncthreads_count(before) - 1) * step;
    low += range;
    count = min(step, count - range);
  }
  return low;
}

}  // namespace sparseloom::kernels::cuda::shares
