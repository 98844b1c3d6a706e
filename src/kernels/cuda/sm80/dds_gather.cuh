// Global to shared memory: the reduction of a block line is the concatenation of its stored blocks, cut into chunks of T::kChunk.
//
//   position p of the line     block j = p / side of its list, offset o = p % side     (side: the block's extent along the
//   reduction) A[token][p]                a[token][along[j] * side + o]                           one 16-byte copy never leaves a
//   block: side >= 8 B[p]                       forward: values[first + j][n][o], kept [n][p]           dx: values[slot[j]][o][n],
//   kept [p][n]
//
// Beyond the end of the list, the right edge of a and the last token the copies write zeros and read nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/sm80/dds_tile.cuh"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::dds {

// Tags. Forward: lines are block rows, the reduction runs along in features. Dx: lines are block columns, along out features.
struct Forward {};
struct Dx {};

template <class Direction>
inline constexpr bool kIsDx = false;
template <>
inline constexpr bool kIsDx<Dx> = true;

struct Params {
  const void* a;                   // [m, a_width], a_stride: x or dy
  const void* values;              // [blocks, bm, bn]
  const std::int32_t* list_begin;  // crow or ccol, [lines + 1]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const void* bias;                // [out_width] or null
  void* out;                       // [m, out_width], out_stride
  std::int64_t m, a_width, a_stride, out_width, out_stride;
  unsigned lines;
  int side_log2;  // of the block's extent along the reduction
  Activation activation;
  bool copy_a, copy_b;  // rows are 16-byte aligned: cp.async; else element by element
  bool store_vectors;   // four outputs at once
};

/// What one thread block works on.
struct Place {
  std::int64_t line;   // block row (forward) or block column (dx)
  std::int64_t token;  // first one
  int tokens;          // that exist from there, at most the tile's
  std::int64_t first;  // of the line's list
  int count;           // blocks in it
};

/// Element `within` of a chunk: which block of the line, and the offset inside it. Chunk and side are powers of two, so a chunk
/// starts at offset 0 or stays inside one block: only its start needs 64 bits.
struct Position {
  int block;
  int offset;
};
template <class T>
__device__ __forceinline__ Position position(const Params& params, int chunk, int within) {
  const std::int64_t start = std::int64_t{chunk} * T::kChunk;
  const int inside = (1 << params.side_log2) - 1;
  return {static_cast<int>(start >> params.side_log2) + (within >> params.side_log2),
          (static_cast<int>(start) & inside) + (within & inside)};
}

/// Starts the copy of a chunk's index entries; zero beyond the list, so that addresses made of them stay inside.
template <class Direction, class T>
__device__ __forceinline__ void fetch_index(const Params& params, const Place& place, SharedStorage<T>& shared, int chunk) {
  const int entry = threadIdx.x % 32, kind = threadIdx.x / 32;  // one warp per list
  const int entries = T::kChunk >> params.side_log2;
  if (kind >= (kIsDx<Direction> ? 2 : 1) || entry >= (entries > 1 ? entries : 1)) return;
  const int block = position<T>(params, chunk, 0).block + entry;
  const std::int64_t i = place.first + (block < place.count ? block : 0);
  const int stage = chunk % T::kIndexStages;
  const std::uint32_t to = ptx::shared_address(kind == 0 ? &shared.along[stage][entry] : &shared.slot[stage][entry]);
  ptx::cp_async_ca_b32(to, (kind == 0 ? params.along : params.slot) + i, block < place.count ? 4 : 0);
}

/// 16 bytes of which the first `bytes` exist, where `from` is not 16-byte aligned. Complete at once.
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

/// 16 bytes of which the first `bytes` exist; the rest becomes zero.
template <class Bits>
struct Copy {
  std::uint32_t to;
  const Bits* from;
  int bytes;
};

/// A thread's copies of one tile, one per call of next. The slow side is a loop, to keep the fast one dense in the instruction
/// cache.
template <int kCopies, class Next>
__device__ __forceinline__ void copy_all(bool aligned, Next next) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const auto copy = next();
      ptx::cp_async_cg(copy.to, copy.from, copy.bytes);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const auto copy = next();
      copy_elements(copy.to, copy.from, copy.bytes);
    }
  }
}

/// A [kTokens][kChunk]: a thread keeps its place along the reduction and steps over tokens.
template <class T>
__device__ __forceinline__ void fetch_a(const Params& params, const Place& place, const SharedStorage<T>& shared, std::uint32_t to,
                                        int chunk) {
  using Rows = Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  constexpr int kRowStep = T::kThreads / Rows::kChunks, kCopies = T::kTokens / kRowStep;
  const int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
  const Position at = position<T>(params, chunk, c * T::kPack);
  const std::int64_t along = shared.along[chunk % T::kIndexStages][(c * T::kPack) >> params.side_log2];
  const std::int64_t column = (along << params.side_log2) + at.offset;
  const std::int64_t left = params.a_width - column;
  const int elements = at.block >= place.count || left <= 0 ? 0 : left < T::kPack ? static_cast<int>(left) : T::kPack;
  Copy<Bits> copy{to + Rows::offset(row, c), static_cast<const Bits*>(params.a) + (place.token + row) * params.a_stride + column,
                  0};
  copy_all<kCopies>(params.copy_a, [&, token = row]() mutable {
    Copy<Bits> now = copy;
    now.bytes = token < place.tokens ? elements * T::kBytes : 0;
    token += kRowStep;
    copy.to += kRowStep * T::kChunkBytes;
    copy.from += kRowStep * params.a_stride;
    return now;
  });
}

/// B [kLine][kChunk] of forward: as A, from blocks that follow each other in memory.
template <class T>
__device__ __forceinline__ void fetch_b(Forward, const Params& params, const Place& place, const SharedStorage<T>&,
                                        std::uint32_t to, int chunk) {
  using Rows = Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  constexpr int kRowStep = T::kThreads / Rows::kChunks, kCopies = T::kLine < kRowStep ? 1 : T::kLine / kRowStep;
  const int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
  if (row >= T::kLine) return;
  const Position at = position<T>(params, chunk, c * T::kPack);
  const std::int64_t first = ((place.first + at.block) * T::kLine + row) << params.side_log2;
  Copy<Bits> copy{to + Rows::offset(row, c), static_cast<const Bits*>(params.values) + first + at.offset,
                  at.block < place.count ? 16 : 0};
  copy_all<kCopies>(params.copy_b, [&] {
    const Copy<Bits> now = copy;
    copy.to += kRowStep * T::kChunkBytes;
    copy.from += kRowStep << params.side_log2;
    return now;
  });
}

/// Where dx keeps B [kChunk][kLine].
template <class T>
struct DxRowsOf {
  using type = Swizzle<T::kLine * T::kBytes>;
};
template <class T>
requires(T::kBytes == 4) struct DxRowsOf<T> {
  using type = PairSwizzle<T::kLine * T::kBytes>;
};
template <class T>
using DxRows = typename DxRowsOf<T>::type;

/// B [kChunk][kLine] of dx: a row of the tile is a row of some block.
template <class T>
__device__ __forceinline__ void fetch_b(Dx, const Params& params, const Place& place, const SharedStorage<T>& shared,
                                        std::uint32_t to, int chunk) {
  using Rows = DxRows<T>;
  using Bits = typename T::Bits;
  constexpr int kAll = T::kChunk * Rows::kChunks, kCopies = kAll < T::kThreads ? 1 : kAll / T::kThreads;
  const int c = threadIdx.x % Rows::kChunks;
  if (threadIdx.x >= kAll) return;
  copy_all<kCopies>(params.copy_b, [&, row = static_cast<int>(threadIdx.x / Rows::kChunks)]() mutable {
    const Position at = position<T>(params, chunk, row);
    const std::int64_t slot = shared.slot[chunk % T::kIndexStages][row >> params.side_log2];
    const std::int64_t first = ((slot << params.side_log2) + at.offset) * T::kLine;
    const Copy<Bits> now{to + Rows::offset(row, c), static_cast<const Bits*>(params.values) + first + c * T::kPack,
                         at.block < place.count ? 16 : 0};
    row += T::kThreads / Rows::kChunks;
    return now;
  });
}

/// Starts the copies of a chunk into its ring stage. Its index entries must have arrived.
template <class Direction, class T>
__device__ __forceinline__ void fetch_chunk(const Params& params, const Place& place, SharedStorage<T>& shared, int chunk,
                                            int stage) {
  const std::uint32_t to = ptx::shared_address(shared.ring[stage]);
  fetch_a<T>(params, place, shared, to, chunk);
  fetch_b<T>(Direction{}, params, place, shared, to + T::kABytes, chunk);
}

}  // namespace sparseloom::kernels::cuda::dds
