// Stores a chunk's sums to their block. The columns of a block lie along wgmma's M, so each warp rounds the
// sums, transposes them through its own staging buffer, and writes 32 bytes of a row at a time. fp32 is
// stored or accumulated straight from the registers: eight lanes hold 32 bytes of a row, which is one DRAM
// sector.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/tile.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// Zeroes sums where the block reaches past the matrix edge: they multiply 0 by the other operand, whose NaN
/// would remain. `columns` and `rows` exist from this lane's first sum on.
__device__ __forceinline__ void clear_padding(float (&sums)[16], std::int32_t columns, std::int32_t rows) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const bool exists = i / 2 % 2 * 8 < columns && i / 4 * 8 + i % 2 < rows;
    if (!exists) sums[i] = 0;
  }
}

/// block = sums, or block += sums with kAdd, for the sums of a warp. A lane has columns lane / 4 and lane / 4
/// + 8 of rows 2 (lane % 4) and 2 (lane % 4) + 1, then of rows + 8. `block` points to the warp's first column
/// and row, in fp32. All loads precede the first store, so that their latencies overlap.
template <bool kAdd, int kSums>
__device__ __forceinline__ void put_in_block(float* block, int bn_log2, const float (&sums)[kSums]) {
  int lane = threadIdx.x % 32;
  ptx::opaque(lane);  // keeps the addresses out of the mainloop's registers
  float* const own = block + (2 * (lane % 4) << bn_log2) + lane / 4;
  const auto place = [&](int i) { return ((i / 4 * 8 + i % 2) << bn_log2) + i / 2 % 2 * 8; };
  float before[kSums] = {};
  if constexpr (kAdd) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) before[i] = own[place(i)];
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) own[place(i)] = kAdd ? before[i] + sums[i] : sums[i];
}

/// The destination of a warp's sums of a chunk. A chunk is 64 columns x 32 rows of the item; a warp has 16
/// columns x 32 rows of it.
struct Destination {
  int block, column, row;  // block of the item; first column and row within the block
};

__device__ __forceinline__ Destination destination_of(const Params& params, int strip, int strip_chunk) {
  const int gathered = strip * kStripColumns + static_cast<int>(threadIdx.x / 32 % 4) * 16;
  return {gathered >> params.bn_log2, gathered & ((1 << params.bn_log2) - 1), strip_chunk * 32};
}

/// Offset of 16 bytes in the staging buffer, swizzled so that the same `chunk` of eight rows lies in
/// different banks.
__device__ __forceinline__ std::uint32_t staging_offset(int row, int chunk) {
  return row * 32 + ((chunk ^ row / 4 % 2) * 16);
}

template <class T, class P>
__device__ __forceinline__ void store_chunk(const P& params, const Record& record, std::uint32_t staging,
                                            int strip, int strip_chunk, const float (&sums)[16]) {
  const Destination to = destination_of(params, strip, strip_chunk);
  if (to.block >= record.blocks) return;  // the strip is not full
  const int lane = threadIdx.x % 32;
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = sums[i];
  if (params.ragged) {
    const std::int32_t column = block_column(params, record.first + to.block) << params.bn_log2;
    clear_padding(y, params.cols - column - to.column - lane / 4,
                  params.rows - record.row * T::kRows - to.row - 2 * (lane % 4));
  }
  const std::int64_t place =
      (((static_cast<std::int64_t>(record.first) + to.block) * T::kRows + to.row) << params.bn_log2) +
      to.column;
  if constexpr (T::kAccumulate || T::Element::kOutF32) {
    put_in_block<T::kAccumulate>(static_cast<float*>(params.out) + place, params.bn_log2, y);
  } else {
    __syncwarp();  // all lanes have read the previous chunk
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 rows: four 8 x 8 matrices, columns fastest
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = T::Element::pair(y[half * 8 + 2 * i], y[half * 8 + 2 * i + 1]);
      ptx::stmatrix_x4_trans(staging + staging_offset(half * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2),
                             pairs);
    }
    __syncwarp();
    auto* out = static_cast<std::uint16_t*>(params.out) + place;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 16 + lane / 2, chunk = lane % 2;
      std::uint32_t words[4];
      ptx::ld_shared(words, staging + staging_offset(row, chunk));
      *reinterpret_cast<uint4*>(out + (row << params.bn_log2) + chunk * 8) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
