// The packed index: the row index and the column index of a BSR weight in one int32 buffer, which is what an
// operator takes and a module owns.
#pragma once

#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom {

/// Where the five lists begin in a packed index, in elements. They follow each other in this order, and each
/// begins at a multiple of 16 elements (64 bytes), so that a buffer as aligned as an allocator's gives lists
/// that are. The gaps are zero. Nothing follows the last list, so that the size of a buffer says how many
/// blocks it has.
struct IndexSegments {
  std::int64_t crow = 0;  // [block rows + 1]
  std::int64_t col = 0;   // [blocks]
  std::int64_t ccol = 0;  // [block columns + 1]
  std::int64_t row = 0;   // [blocks]
  std::int64_t slot = 0;  // [blocks]
  std::int64_t size = 0;  // of the whole buffer
};

constexpr IndexSegments index_segments(std::int64_t block_rows, std::int64_t block_cols,
                                       std::int64_t blocks) noexcept {
  const auto padded = [](std::int64_t count) { return (count + 15) / 16 * 16; };
  IndexSegments s;
  s.col = padded(block_rows + 1);
  s.ccol = s.col + padded(blocks);
  s.row = s.ccol + padded(block_cols + 1);
  s.slot = s.row + padded(blocks);
  s.size = s.slot + blocks;
  return s;
}

/// The column index that follows a row index whose crow is the beginning of a packed index.
inline TransposedView column_index(const IndexView& index) noexcept {
  const IndexSegments s = index_segments(index.block_rows(), index.block_cols(), index.blocks);
  return {index.crow + s.ccol, index.crow + s.row, index.crow + s.slot};
}

/// Writes a packed index, gaps included, from a valid row index; `data` has room for index_segments(..).size.
inline void pack_index(const IndexView& index, std::int32_t* data) {
  const IndexSegments s = index_segments(index.block_rows(), index.block_cols(), index.blocks);
  for (std::int64_t i = 0; i < s.size; ++i) data[i] = 0;
  for (std::int64_t r = 0; r <= index.block_rows(); ++r) data[s.crow + r] = index.crow[r];
  for (std::int64_t i = 0; i < index.blocks; ++i) data[s.col + i] = index.col[i];
  transpose_index(index, data + s.ccol, data + s.row, data + s.slot);
}

}  // namespace sparseloom
