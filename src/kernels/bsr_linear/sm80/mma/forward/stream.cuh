// The order in which a thread block of mma::forward reads: the stored blocks of its first block row, cut into
// chunks of T::kChunk elements, then those of the next block row. For dx, "block row" means block column.
//
//   position p of a block row    block j = p / side of its list, offset o = p % side; side: a block's extent
//                                along the reduction
//   stream of a thread block     | block row 0: chunk 0, 1, ... | block row 1: ... | ...
//
// One ring serves all block rows: the next block row's copies are in flight while this one's sums are stored.
// An empty block row is one chunk of zeros, so that it reaches the epilogue too.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/forward/tile.cuh"
#include "sparseloom/activation.h"
#include "sparseloom/direction.h"

namespace sparseloom::kernels::cuda::mma::forward {

// Tags for the direction. Forward: the reduction runs along in features. Dx: "block rows" are block columns,
// and the reduction runs along out features.
struct Forward {};
struct Dx {};

template <class Direction>
inline constexpr bool kIsDx = false;
template <>
inline constexpr bool kIsDx<Dx> = true;

struct Params {
  const void* a;                   // [m, a_width], a_stride: x or dy
  const void* values;              // [blocks, bm, bn]
  const std::int32_t* list_begin;  // crow or ccol, [block rows + 1]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dx only, [blocks]
  const void* bias;                // [out_width] or null
  const void* residual;            // [m, out_width], residual_stride, or null
  void* out;                       // [m, out_width], out_stride
  std::int64_t m, a_width, a_stride, out_width, out_stride, residual_stride;
  unsigned block_rows;
  unsigned block_rows_in_turn;  // block rows that one thread block computes in turn
  unsigned segments;            // thread blocks that share a block row, a segment each
  int side_log2;                // log2 of a block's extent along the reduction
  Activation activation;
  bool copy_a, copy_b;  // rows are 16-byte aligned: cp.async; otherwise by elements
  bool whole_width;     // a_width is a multiple of the side: no block crosses the edge
  bool store_vectors;   // four outputs may be stored at once
};

/// Tokens and block rows of one thread block, and its segment of each block row's chunks: all of them, except
/// in a team.
struct Place {
  std::int64_t token;  // first one
  int tokens;          // existing tokens of the tile
  unsigned block_row, end_block_row;
  int segment = 0, segments = 1;
};

template <class T>
__device__ __forceinline__ Place place_of(const Params& params, unsigned work) {
  const unsigned turns = (params.block_rows + params.block_rows_in_turn - 1) / params.block_rows_in_turn;
  const unsigned m_tile = work / turns, block_row = work % turns * params.block_rows_in_turn;
  const unsigned end = params.block_rows - block_row < params.block_rows_in_turn
                           ? params.block_rows
                           : block_row + params.block_rows_in_turn;
  const std::int64_t token = std::int64_t{m_tile} * T::kTokens, left = params.m - token;
  return {token, left < T::kTokens ? static_cast<int>(left) : T::kTokens, block_row, end};
}

/// Position of the next chunk to copy.
struct Cursor {
  unsigned block_row;
  std::int32_t first, end;  // the block row's list
  std::int32_t after;       // end of the next block row's list, loaded one block row ahead
  int chunk, end_chunk;

  __device__ __forceinline__ int count() const { return end - first; }
};

template <class T>
__device__ __forceinline__ void enter_block_row(const Params& params, const Place& place, Cursor& cursor) {
  const int chunks =
      static_cast<int>(((std::int64_t{cursor.count()} << params.side_log2) + T::kChunk - 1) / T::kChunk);
  cursor.chunk = 0;
  cursor.end_chunk = chunks;
  if (place.segments > 1) {
    cursor.chunk = static_cast<int>(std::int64_t{chunks} * place.segment / place.segments);
    cursor.end_chunk = static_cast<int>(std::int64_t{chunks} * (place.segment + 1) / place.segments);
  }
  if (cursor.chunk == cursor.end_chunk)
    cursor.chunk = chunks, cursor.end_chunk = chunks + 1;  // one chunk past the list: zeros
  cursor.after =
      params.list_begin[cursor.block_row + 2 < params.block_rows ? cursor.block_row + 2 : params.block_rows];
}

template <class T>
__device__ __forceinline__ Cursor cursor_at(const Params& params, const Place& place) {
  Cursor cursor{
      place.block_row, params.list_begin[place.block_row], params.list_begin[place.block_row + 1], 0, 0, 0};
  enter_block_row<T>(params, place, cursor);
  return cursor;
}

template <class T>
__device__ __forceinline__ void advance(const Params& params, const Place& place, Cursor& cursor) {
  if (++cursor.chunk < cursor.end_chunk) return;
  ++cursor.block_row;
  cursor.first = cursor.end;
  cursor.end = cursor.after;
  if (cursor.block_row < place.end_block_row) enter_block_row<T>(params, place, cursor);
}

/// The block of the block row that contains element `within` of a chunk, and the offset inside that block.
/// Chunk and side are powers of two, so a chunk starts at offset 0 or stays inside one block: only its start
/// needs 64 bits.
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

}  // namespace sparseloom::kernels::cuda::mma::forward
