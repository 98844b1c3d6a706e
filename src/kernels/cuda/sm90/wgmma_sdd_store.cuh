// A chunk's sums to their block: rounded, turned (the columns of a block lie along wgmma's rows), and written
// 32 bytes of a row at a time by each warp, from staging of its own. fp32 goes right from the registers, or
// is added to: of one sum, eight lanes hold 32 bytes of a row, which is what memory moves at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/ld_shared.cuh"
#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/ptx/sm90/stmatrix.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// Zeros where the block reaches beyond the matrix: what was summed there is 0 times a value of the other
/// operand, NaN for some. columns, rows: that exist from this lane's first sum on.
__device__ __forceinline__ void clear_padding(float (&sums)[16], std::int32_t columns, std::int32_t rows) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const bool exists = i / 2 % 2 * 8 < columns && i / 4 * 8 + i % 2 < rows;
    if (!exists) sums[i] = 0;
  }
}

/// block = sums, or += where kAdd, of a warp: columns lane / 4 and 8 further of rows 2 (lane % 4), the next,
/// and 8 further. `block`: the first column and row of them, fp32. All loads before the first store, so that
/// they wait for memory together.
template <bool kAdd, int kSums>
__device__ __forceinline__ void put_in_block(float* block, int bn_log2, const float (&sums)[kSums]) {
  int lane = threadIdx.x % 32;
  ptx::opaque(lane);  // else the addresses fill registers all along
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

/// Where a warp's part of a chunk goes: within the item, the chunk is 64 columns x 32 rows, the warp's 16 x
/// 32 of them.
struct Destination {
  int block, column, row;  // of the item; within the block
};

__device__ __forceinline__ Destination destination_of(const Params& params, int strip, int strip_chunk) {
  const int gathered = strip * kStripColumns + static_cast<int>(threadIdx.x / 32 % 4) * 16;
  return {gathered >> params.bn_log2, gathered & ((1 << params.bn_log2) - 1), strip_chunk * 32};
}

/// 16-byte chunk c of row r of the staging: eight rows of one c lie in different banks.
__device__ __forceinline__ std::uint32_t staging_offset(int row, int chunk) {
  return row * 32 + ((chunk ^ row / 4 % 2) * 16);
}

template <class T>
__device__ __forceinline__ void store_chunk(const Params& params, const Record& record, std::uint32_t staging,
                                            int strip, int strip_chunk, const float (&sums)[16]) {
  const Destination to = destination_of(params, strip, strip_chunk);
  if (to.block >= record.blocks) return;  // half a strip
  const int lane = threadIdx.x % 32;
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = sums[i];
  if (params.ragged) {
    const std::int32_t block_column = __ldg(params.col + record.first + to.block) << params.bn_log2;
    clear_padding(y, params.cols - block_column - to.column - lane / 4,
                  params.rows - record.row * T::kRows - to.row - 2 * (lane % 4));
  }
  const std::int64_t place =
      (((static_cast<std::int64_t>(record.first) + to.block) * T::kRows + to.row) << params.bn_log2) +
      to.column;
  if constexpr (T::kAccumulate || T::Element::kOutF32) {
    put_in_block<T::kAccumulate>(static_cast<float*>(params.out) + place, params.bn_log2, y);
  } else {
    __syncwarp();  // the chunk before has been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 rows: four 8 x 8 matrices, columns inside
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

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
