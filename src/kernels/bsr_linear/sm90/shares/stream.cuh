// The order in which a thread block of sm90_shares reads its share: strip by strip, each cut into chunks
// of kChunk elements of the reduction. A chunk never crosses a strip's end.
#pragma once

#include "kernels/bsr_linear/sm90/shares/config.cuh"

namespace sparseloom::kernels::cuda::shares {

/// The next chunk to copy.
struct Cursor {
  int block_row, strip;
  std::int32_t first, end;            // the block row's list
  int first_piece, piece, end_piece;  // pieces of the strip in this share
  int left;                           // units of the share after this strip
  bool more = false;                  // there is a next chunk

  __device__ __forceinline__ int pieces(const Params& params) const {
    return (end - first) << params.pieces_log2;
  }
};

/// Goes to unit `offset` of the cursor's strip.
__device__ __forceinline__ void enter(const Params& params, Cursor& cursor, int offset) {
  const int pieces = cursor.pieces(params), units = min(cursor.left, pieces + 1 - offset);
  cursor.left -= units;
  cursor.piece = cursor.first_piece = max(offset - 1, 0);
  cursor.end_piece = max(offset + units - 1, 0);
  cursor.more = units > 0 && (pieces == 0 || cursor.piece < cursor.end_piece);
}

__device__ __forceinline__ Cursor cursor_at(const Params& params, const Lists& lists, int block_row, int unit,
                                            int units) {
  Cursor cursor;
  cursor.block_row = block_row;
  cursor.first = lists.at(block_row);
  cursor.end = lists.at(block_row + 1);
  cursor.left = units;
  int offset = unit - cost_before(params, block_row, cursor.first);
  const int strip_units = cursor.pieces(params) + 1;
  cursor.strip = offset >= strip_units;
  offset -= cursor.strip * strip_units;
  enter(params, cursor, offset);
  return cursor;
}

/// Advances past a chunk of `chunk_pieces` pieces.
__device__ __forceinline__ void advance(const Params& params, const Lists& lists, Cursor& cursor,
                                        int chunk_pieces) {
  cursor.piece += chunk_pieces;
  if (cursor.piece < cursor.end_piece) return;
  cursor.more = false;
  if (cursor.left == 0) return;
  if (++cursor.strip == 1 << params.strips_log2) {
    cursor.strip = 0;
    ++cursor.block_row;
    cursor.first = cursor.end;
    cursor.end = lists.at(cursor.block_row + 1);
  }
  enter(params, cursor, 0);
}

/// The record of the chunk of `chunk_pieces` pieces at the cursor.
template <class C>
__device__ __forceinline__ Record record_of(const Params& params, const Cut& cut, const Cursor& cursor,
                                            int chunk_pieces) {
  Record record{kInside, chunk_pieces * (C::kPiece / 16),
                (cursor.block_row << params.side_log2) + cursor.strip * C::kStrip, 0};
  if (cursor.piece + chunk_pieces < cursor.end_piece) return record;
  const int pieces = cursor.pieces(params);
  record.end = cursor.first_piece > 0 ? kContinues : cursor.end_piece == pieces ? kComplete : kAdds;
  if (record.end == kAdds)
    record.last =
        cut.owner(cost_before(params, cursor.block_row, cursor.first) + cursor.strip * (pieces + 1) + pieces);
  return record;
}

}  // namespace sparseloom::kernels::cuda::shares
