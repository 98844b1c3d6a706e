// What a thread block reads, in order: the stored blocks of its first line, cut into chunks of T::kChunk,
// then those of the next.
//
//   position p of a line       block j = p / side of its list, offset o = p % side     (side: a block's
//   extent along it) of a thread block          | line 0: chunk 0, 1, ... | line 1: ... | ...           one
//   ring for all: the next line's copies fly
//                                                                                      while this line's sums
//                                                                                      are stored
//
// An empty line is one chunk of zeros, so that it, too, comes to the epilogue.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm80/dds_tile.cuh"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::dds {

// Tags. Forward: lines are block rows, the reduction runs along in features. Dx: lines are block columns,
// along out features.
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
  const void* residual;            // [m, out_width], residual_stride, or null
  void* out;                       // [m, out_width], out_stride
  std::int64_t m, a_width, a_stride, out_width, out_stride, residual_stride;
  unsigned lines;
  unsigned lines_in_turn;  // of one thread block
  unsigned parts;          // thread blocks that share a line
  int side_log2;           // of the block's extent along the reduction
  Activation activation;
  bool copy_a, copy_b;  // rows are 16-byte aligned: cp.async; else element by element
  bool whole_width;     // a_width is a multiple of the side: no block hangs over the edge
  bool store_vectors;   // four outputs at once
};

/// Which tokens and lines one thread block works on, and which part of each line's chunks: all but in a team.
struct Place {
  std::int64_t token;  // first one
  int tokens;          // that exist from there, at most the tile's
  unsigned line, end_line;
  int part = 0, parts = 1;
};

template <class T>
__device__ __forceinline__ Place place_of(const Params& params, unsigned work) {
  const unsigned turns = (params.lines + params.lines_in_turn - 1) / params.lines_in_turn;
  const unsigned panel = work / turns, line = work % turns * params.lines_in_turn;
  const unsigned end =
      params.lines - line < params.lines_in_turn ? params.lines : line + params.lines_in_turn;
  const std::int64_t token = std::int64_t{panel} * T::kTokens, left = params.m - token;
  return {token, left < T::kTokens ? static_cast<int>(left) : T::kTokens, line, end};
}

/// The next chunk to copy.
struct Cursor {
  unsigned line;
  std::int32_t first, end;  // the line's list
  std::int32_t after;       // end of the next line's: read one line ahead
  int chunk, end_chunk;

  __device__ __forceinline__ int count() const { return end - first; }
};

template <class T>
__device__ __forceinline__ void enter_line(const Params& params, const Place& place, Cursor& cursor) {
  const int chunks =
      static_cast<int>(((std::int64_t{cursor.count()} << params.side_log2) + T::kChunk - 1) / T::kChunk);
  cursor.chunk = 0;
  cursor.end_chunk = chunks;
  if (place.parts > 1) {
    cursor.chunk = static_cast<int>(std::int64_t{chunks} * place.part / place.parts);
    cursor.end_chunk = static_cast<int>(std::int64_t{chunks} * (place.part + 1) / place.parts);
  }
  if (cursor.chunk == cursor.end_chunk)
    cursor.chunk = chunks, cursor.end_chunk = chunks + 1;  // behind the list: zeros
  cursor.after = params.list_begin[cursor.line + 2 < params.lines ? cursor.line + 2 : params.lines];
}

template <class T>
__device__ __forceinline__ Cursor cursor_at(const Params& params, const Place& place) {
  Cursor cursor{place.line, params.list_begin[place.line], params.list_begin[place.line + 1], 0, 0, 0};
  enter_line<T>(params, place, cursor);
  return cursor;
}

template <class T>
__device__ __forceinline__ void advance(const Params& params, const Place& place, Cursor& cursor) {
  if (++cursor.chunk < cursor.end_chunk) return;
  ++cursor.line;
  cursor.first = cursor.end;
  cursor.end = cursor.after;
  if (cursor.line < place.end_line) enter_line<T>(params, place, cursor);
}

/// Element `within` of a chunk: which block of the line, and the offset inside it. Chunk and side are powers
/// of two, so a chunk starts at offset 0 or stays inside one block: only its start needs 64 bits.
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

}  // namespace sparseloom::kernels::cuda::dds
