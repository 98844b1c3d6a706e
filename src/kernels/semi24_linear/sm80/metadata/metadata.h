// The positions of a 2:4 matrix in the order in which tensor cores take them as metadata.
//
// A tile is 64 rows x 128 columns, 1024 bytes; tiles follow each other row of tiles by row of tiles. In a
// tile, lane t of warp w (of four, 16 rows each) has two words side by side, for the first and the last 64
// columns. A word holds 16 bits of row t / 4, and above them of row t / 4 + 8: the positions of 16 columns,
// from 16 (t % 4) of the 64 on. That is a register of mma.sp.m16n8k32 and of wgmma.sp.m64nNk32, and serves
// two instructions; one thread's words of a K tile are one load, a tile is one bulk copy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseloom::kernels::cuda {

inline constexpr std::int64_t kMetadataRows = 64, kMetadataCols = 128, kMetadataTileBytes = 1024;

constexpr std::int64_t semi24_metadata_bytes(std::int64_t rows, std::int64_t cols) {
  return (rows + kMetadataRows - 1) / kMetadataRows * ((cols + kMetadataCols - 1) / kMetadataCols) *
         kMetadataTileBytes;
}

/// Orders `positions`, uint8 [rows, ceil(ceil(cols / 4) / 2)] as in memory of record, into `metadata` of
/// semi24_metadata_bytes(rows, cols), aligned to 16 bytes. Beyond the matrix it writes the positions 0 and 1,
/// since two equal ones mean nothing to the hardware. Queues one kernel on `stream`, a cudaStream_t, and
/// returns a cudaError_t. Whatever makes the weights calls it once; products read only the result.
int semi24_order_metadata(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols,
                          std::byte* metadata, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
