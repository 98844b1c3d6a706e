// Stores of dw_small: a cell's sums to their blocks, or added to fp32 there.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/cell.cuh"
#include "kernels/bsr_linear/sm80/dw_small/find.cuh"
#include "kernels/bsr_linear/sm80/dw_small/params.cuh"

namespace sparseloom::kernels::cuda::dw_small {

/// A cell's position: its first row in a block, and its first column among those of the tile's blocks.
struct CellPlace {
  int row, column;
};

/// Lane q of four consecutive lanes gets word q of each of them, in their order.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&word)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 1], 1);
    (odd ? word[i] : word[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(~0u, high ? word[i] : word[i + 2], 2);
    (high ? word[i] : word[i + 2]) = other;
  }
}

/// The destination of a lane's columns of a cell: block `block` of the tile, from column `column` on, of
/// which `present` exist, and the first `rows` rows of the block.
struct Columns {
  bool stored;
  std::int64_t corner;  // offset of the block, in elements of out
  int column, present, rows;
};

/// `gathered` is a column among those of the tile's blocks. All lanes of a warp call it.
__device__ __forceinline__ Columns columns_at(const Params& params, const TileBlocks& of_tile, int gathered) {
  const int block = gathered >> params.log2_bn;
  Columns at{block < of_tile.count, (of_tile.first + block) << (params.log2_bm + params.log2_bn),
             gathered & ((1 << params.log2_bn) - 1), 8, 1 << params.log2_bm};
  if (!params.ragged) return at;
  const std::int64_t block_row = __shfl_sync(~0u, of_tile.row, block),
                     block_column = __shfl_sync(~0u, of_tile.column, block);
  const std::int64_t columns = params.cols - (block_column << params.log2_bn) - at.column,
                     rows = params.rows - (block_row << params.log2_bm);
  at.present = static_cast<int>(columns < 0 ? 0 : columns < 8 ? columns : 8);
  at.rows = static_cast<int>(rows < at.rows ? rows : at.rows);
  return at;
}

/// Rounds the sums and writes a row's eight columns per lane, 16 bytes. Padding gets zero instead of its sum:
/// 0 * NaN is NaN.
template <class Config>
__device__ __forceinline__ void store_rounded(const Params& params, const TileBlocks& of_tile,
                                              const CellPlace& place, const Sums<Config>& sums, int lane) {
  const Columns at = columns_at(params, of_tile, place.column + lane % 4 * 8);
#pragma unroll
  for (int h = 0; h < Config::kHeights; ++h)
#pragma unroll
    for (int half = 0; half < (Config::kRows == 8 ? 1 : 2); ++half) {
      std::uint32_t word[4];
#pragma unroll
      for (int t = 0; t < 4; ++t)
        word[t] = Config::Type::round_pair(sums[h][t][2 * half], sums[h][t][2 * half + 1]);
      transpose_quad(word, lane);
      if (!at.stored) continue;
      const int row = place.row + 16 * h + 8 * half + lane / 4;
      if (params.ragged) {
        const int present = row < at.rows ? at.present : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          word[i] &= (2 * i < present ? 0xffffu : 0u) | (2 * i + 1 < present ? 0xffff0000u : 0u);
      }
      auto* out = static_cast<std::uint16_t*>(params.out) + at.corner + (row << params.log2_bn) + at.column;
      if (params.out_chunks) {
        *reinterpret_cast<uint4*>(out) = make_uint4(word[0], word[1], word[2], word[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = static_cast<std::uint16_t>(word[i / 2] >> i % 2 * 16);
      }
    }
}

/// Adds the sums to fp32, two columns per lane: whole sectors without an exchange between lanes.
template <class Config>
__device__ __forceinline__ void add_sums(const Params& params, const TileBlocks& of_tile,
                                         const CellPlace& place, const Sums<Config>& sums, int lane) {
  constexpr int kHalves = Config::kRows == 8 ? 1 : 2;
#pragma unroll
  for (int t = 0; t < Config::kTiles; ++t) {
    const Columns at = columns_at(params, of_tile, place.column + 8 * t);
    if (!at.stored) continue;
    const int pair = lane % 4 * 2;
    float value[Config::kHeights * kHalves][2];
    const auto place_of = [&](int k) {
      const int row = place.row + 8 * k + lane / 4;
      return static_cast<float*>(params.out) + at.corner + (row << params.log2_bn) + at.column + pair;
    };
    // All loads precede the first store: as far as the compiler knows, a store may alias the next load.
#pragma unroll
    for (int k = 0; k < Config::kHeights * kHalves; ++k) {
      if (params.out_chunks) {
        const float2 before = *reinterpret_cast<const float2*>(place_of(k));
        value[k][0] = before.x, value[k][1] = before.y;
      } else {
        value[k][0] = place_of(k)[0], value[k][1] = place_of(k)[1];
      }
    }
#pragma unroll
    for (int k = 0; k < Config::kHeights * kHalves; ++k) {
      const bool row_exists = place.row + 8 * k + lane / 4 < at.rows;
      const float* sum = &sums[k / kHalves][t][k % kHalves * 2];
      if (row_exists && pair < at.present) value[k][0] += sum[0];
      if (row_exists && pair + 1 < at.present) value[k][1] += sum[1];
      if (params.out_chunks) {
        *reinterpret_cast<float2*>(place_of(k)) = make_float2(value[k][0], value[k][1]);
      } else {
        place_of(k)[0] = value[k][0], place_of(k)[1] = value[k][1];
      }
    }
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
