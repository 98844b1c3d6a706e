// The positions of a 2:4 matrix in the order of the tensor cores' metadata operand.
//
// A tile is 64 rows x as many columns as 128 stored bytes of a row cover: 128 columns and 1024 bytes, or 256
// columns and 2048 bytes for values of 8 bits. Tiles follow each other row of tiles by row of tiles. A
// thread's words of a tile lie side by side, so that they are one load, and a tile is one bulk copy. Lane t
// of warp w (of four, 16 rows each) has
//
//   two words, for the first and the last 64 columns. A word holds 16 bits of row t / 4, and above them of
//   row t / 4 + 8: the positions of 16 columns, from 16 (t % 4) of the 64 on. That is a register of
//   mma.sp.m16n8k32 and of wgmma.sp.m64nNk32, and serves two instructions;
//
//   or one word, for a tile of 64 columns and 512 bytes alone (semi24_order_units): the first of those two;
//
//   or, for values of 8 bits, four words, one for each 64 columns: the positions of 32 columns of row
//   t / 4 + 8 (t % 2), from 32 (t / 2 % 2) of the 64 on. That is a register of wgmma.sp.m64nNk64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda {

inline constexpr std::int64_t kMetadataRows = 64, kMetadataCols = 128, kMetadataTileBytes = 1024,
                              kMetadataUnitBytes = 512;

/// The columns and bytes of a tile relative to those: 2 for values of 8 bits, otherwise 1.
constexpr std::int64_t semi24_metadata_width(DType dtype) { return size_of(dtype) == 1 ? 2 : 1; }

constexpr std::int64_t semi24_metadata_bytes(std::int64_t rows, std::int64_t cols, DType dtype) {
  const std::int64_t width = semi24_metadata_width(dtype), tile_cols = kMetadataCols * width;
  return (rows + kMetadataRows - 1) / kMetadataRows * ((cols + tile_cols - 1) / tile_cols) *
         (kMetadataTileBytes * width);
}

/// Orders `positions`, uint8 [rows, ceil(ceil(cols / 4) / 2)] as in memory of record, for values of `dtype`
/// into `metadata` of semi24_metadata_bytes(rows, cols, dtype), aligned to 16 bytes. Past the matrix it
/// writes the positions 0 and 1, since two equal ones are invalid. Queues one kernel on `stream`, a
/// cudaStream_t, and returns a cudaError_t. Call it once per weight; products read only the result.
int semi24_order_metadata(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols, DType dtype,
                          std::byte* metadata, void* stream) noexcept;

/// The same for values of 16 bits in tiles of 64 x 64 and kMetadataUnitBytes, row of tiles by row of tiles.
/// rows and cols are multiples of 64.
int semi24_order_units(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols,
                       std::byte* metadata, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
