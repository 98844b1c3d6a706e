// Copies one chunk of the stream (stream.cuh) from global to shared memory. Position p of a block row is
// offset o in its block j:
//
//   A[token][p]   a[token][along[j] * side + o]         a 16-byte copy never leaves a block, since side >= 8
//   B[p]          forward: values[first + j][n][o], kept as [n][p]
//                 dx:      values[slot[j]][o][n], kept as [p][n]
//
// Past the end of the list, the right edge of a and the last token, the copies write zeros and read nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/forward/stream.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::mma::forward {

/// Layout of dx's B [kChunk][kBlockRow] in shared memory.
template <class T>
struct DxRowsOf {
  using type = Swizzle<T::kBlockRow * T::kBytes>;
};
template <class T>
requires(T::kBytes == 4) struct DxRowsOf<T> {
  using type = PairSwizzle<T::kBlockRow * T::kBytes>;
};
template <class T>
using DxRows = typename DxRowsOf<T>::type;

/// A thread's index entries for the chunk at the cursor, loaded one chunk ahead: `along` for its copies of A
/// and, for dx, `slot` for its first copy of B. They are zero past the list, so that addresses computed from
/// them stay inside the operands.
struct Entries {
  std::int32_t along, slot;
};

template <class Direction, class T>
__device__ __forceinline__ Entries read_entries(const Params& params, const Cursor& cursor) {
  const int c = threadIdx.x % (T::kChunkBytes / 16);
  const int a_block = position<T>(params, cursor.chunk, c * T::kPack).block;
  Entries entries{a_block < cursor.count() ? __ldg(params.along + cursor.first + a_block) : 0, 0};
  if constexpr (kIsDx<Direction>) {
    const int row = threadIdx.x / DxRows<T>::kChunks;
    const int b_block = position<T>(params, cursor.chunk, row < T::kChunk ? row : 0).block;
    if (b_block < cursor.count()) entries.slot = __ldg(params.slot + cursor.first + b_block);
  }
  return entries;
}

/// Copies 16 bytes of which the first `bytes` exist, from a misaligned `from`. Synchronous.
template <class Bits>
__device__ __forceinline__ void copy_elements(std::uint32_t to, const Bits* from, int bytes) {
  constexpr int kPerWord = 4 / sizeof(Bits);
  std::uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = 0;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const int i = w * kPerWord + e;
      if (i * static_cast<int>(sizeof(Bits)) < bytes) words[w] |= std::uint32_t{from[i]} << (e * 16);
    }
  }
  ptx::st_shared_v4_b32(to, words);
}

/// A thread's copies of one tile: kCopies of 16 bytes, kToStep bytes apart in shared memory and `from_step`
/// elements apart in global memory. The first bytes_of(i) bytes of copy i exist; `whole` states that all do.
/// The slow path is a rolled loop, to keep the fast paths compact in the instruction cache.
template <int kCopies, int kToStep, class Bits, class Step, class BytesOf>
__device__ __forceinline__ void copy_all(bool whole, bool aligned, std::uint32_t to, const Bits* from,
                                         Step from_step, BytesOf bytes_of) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += from_step) ptx::cp_async_cg(to + i * kToStep, from);
  } else if (aligned) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += from_step)
      ptx::cp_async_cg(to + i * kToStep, from, bytes_of(i));
  } else {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i, from += from_step) copy_elements(to + i * kToStep, from, bytes_of(i));
  }
}

/// A [kTokens][kChunk]: a thread keeps its position along the reduction and steps over tokens.
template <class T>
__device__ __forceinline__ void fetch_a(const Params& params, const Place& place, const Cursor& cursor,
                                        const Entries& entries, bool inside, std::uint32_t to) {
  using Rows = Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  constexpr int kRowStep = T::kThreads / Rows::kChunks;
  const int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
  const Position at = position<T>(params, cursor.chunk, c * T::kPack);
  const std::int64_t column = (std::int64_t{entries.along} << params.side_log2) + at.offset,
                     left = params.a_width - column;
  const int elements = at.block >= cursor.count() || left <= 0 ? 0
                       : left < T::kPack                       ? static_cast<int>(left)
                                                               : T::kPack;
  copy_all<T::kTokens / kRowStep, kRowStep * T::kChunkBytes>(
      inside && params.copy_a && params.whole_width && place.tokens == T::kTokens, params.copy_a,
      to + Rows::offset(row, c),
      static_cast<const Bits*>(params.a) + (place.token + row) * params.a_stride + column,
      kRowStep * params.a_stride,
      [&](int i) { return row + i * kRowStep < place.tokens ? elements * T::kBytes : 0; });
}

/// Forward's B [kBlockRow][kChunk]: like A, but from contiguous blocks.
template <class T>
__device__ __forceinline__ void fetch_b(Forward, const Params& params, const Cursor& cursor, const Entries&,
                                        bool inside, std::uint32_t to) {
  using Rows = Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  constexpr int kRowStep = T::kThreads / Rows::kChunks,
                kCopies = T::kBlockRow < kRowStep ? 1 : T::kBlockRow / kRowStep;
  const int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
  if (row >= T::kBlockRow) return;
  const Position at = position<T>(params, cursor.chunk, c * T::kPack);
  const std::int64_t first = ((std::int64_t{cursor.first} + at.block) * T::kBlockRow + row)
                             << params.side_log2;
  copy_all<kCopies, kRowStep * T::kChunkBytes>(
      inside && params.copy_b, params.copy_b, to + Rows::offset(row, c),
      static_cast<const Bits*>(params.values) + first + at.offset, std::int64_t{kRowStep} << params.side_log2,
      [&](int) { return at.block < cursor.count() ? 16 : 0; });
}

/// dx's B [kChunk][kBlockRow]: a row of the tile is a row of some block.
template <class T>
__device__ __forceinline__ void fetch_b(Dx, const Params& params, const Cursor& cursor,
                                        const Entries& entries, bool inside, std::uint32_t to) {
  using Rows = DxRows<T>;
  using Bits = typename T::Bits;
  constexpr int kAll = T::kChunk * Rows::kChunks, kCopies = kAll < T::kThreads ? 1 : kAll / T::kThreads;
  constexpr int kRowStep = T::kThreads / Rows::kChunks;
  static_assert(kCopies == 1 || kRowStep % (Rows::kRowsPerLine * Rows::kKeys) == 0,
                "all rows of a thread must have the same swizzle key");
  if (threadIdx.x >= kAll) return;
  const int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
  const auto first_of = [&](std::int32_t slot, Position at) {
    return static_cast<const Bits*>(params.values) +
           ((std::int64_t{slot} << params.side_log2) + at.offset) * T::kBlockRow + c * T::kPack;
  };
  to += Rows::offset(row, c);
  if (kCopies == 1 || 1 << params.side_log2 >= T::kChunk) {  // all of a thread's rows lie in one block
    const Position at = position<T>(params, cursor.chunk, row);
    copy_all<kCopies, kRowStep * T::kBlockRow * T::kBytes>(
        inside && params.copy_b, params.copy_b, to, first_of(entries.slot, at), kRowStep * T::kBlockRow,
        [&](int) { return at.block < cursor.count() ? 16 : 0; });
    return;
  }
  // Blocks that are long along the outputs and short along the reduction. Prefetching every row's slot would
  // cost too many registers.
  if constexpr (kCopies > 1) {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const Position at = position<T>(params, cursor.chunk, row + i * kRowStep);
      const bool exists = at.block < cursor.count();
      const std::int32_t slot = exists ? __ldg(params.slot + cursor.first + at.block) : 0;
      copy_all<1, 0>(false, params.copy_b, to + i * kRowStep * T::kBlockRow * T::kBytes, first_of(slot, at),
                     0, [&](int) { return exists ? 16 : 0; });
    }
  }
}

/// Starts the copies of the chunk at the cursor into a ring stage, and records whether it is its block row's
/// last one.
template <class Direction, class T>
__device__ __forceinline__ void fetch_chunk(const Params& params, const Place& place, const Cursor& cursor,
                                            const Entries& entries, SharedStorage<T>& shared, int stage) {
  const std::uint32_t to = ptx::shared_address(shared.ring[stage]);
  const bool inside = (std::int64_t{cursor.chunk} + 1) * T::kChunk <= std::int64_t{cursor.count()}
                                                                          << params.side_log2;
  fetch_a<T>(params, place, cursor, entries, inside, to);
  fetch_b<T>(Direction{}, params, cursor, entries, inside, to + T::kABytes);
  if (threadIdx.x == 0) shared.ends_block_row[stage] = cursor.chunk + 1 == cursor.end_chunk;
}

}  // namespace sparseloom::kernels::cuda::mma::forward
