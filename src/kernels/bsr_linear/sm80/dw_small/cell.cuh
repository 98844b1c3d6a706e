// A cell is the warp tile of dw_small: the sums of up to 32 rows x 32 gathered columns, over a range of the
// tokens in shared memory.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/slab.cuh"
#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::dw_small {

struct Bf16 {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct F16 {
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

/// Rows of dY are the MMA's M, gathered columns of X its N, tokens its K. kRows: 8, 16 or 32 rows of a cell;
/// with 8 the MMA's other half is zero. kColumns: columns of a block, or 32 if it has more.
template <class DataType, int kCellRows, int kBlockColumns>
struct Config {
  using Type = DataType;
  static constexpr int kRows = kCellRows;
  static constexpr int kHeights = kRows == 32 ? 2 : 1;       // MMAs one above the other
  static constexpr int kBlocks = kCellSide / kBlockColumns;  // blocks side by side in a cell
  static constexpr int kBlockTiles = kBlockColumns / 8;      // MMAs side by side in a block
  static constexpr int kTiles = kCellSide / 8;
};

template <class Config>
using Sums = float[Config::kHeights][Config::kTiles][4];

/// Rows of dY, [tokens][16] or [tokens][8], as the MMA's A.
template <class Config>
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[Config::kHeights][4],
                                          const std::uint32_t (&from)[Config::kHeights], int step) {
  if constexpr (Config::kRows == 8) {
    std::uint32_t half[2];
    ptx::ldmatrix_x2_trans(half, from[0] + step);
    a[0][0] = half[0], a[0][1] = 0, a[0][2] = half[1], a[0][3] = 0;
  } else {
#pragma unroll
    for (int h = 0; h < Config::kHeights; ++h) ptx::ldmatrix_x4_trans(a[h], from[h] + step);
  }
}

/// sums += the products of a cell over the tokens from `token` to `end`, multiples of 16. `row_chunk[j]`:
/// where the rows of its block j begin in the slab of dY. kShared: all of its blocks have the same rows, as
/// in one block row.
template <class Config, bool kShared>
__device__ __forceinline__ void multiply(Sums<Config>& sums, const Slab& dy, const Slab& x,
                                         const int (&row_chunk)[Config::kBlocks], int column_chunk, int token,
                                         int end, int lane) {
  constexpr int kSlices = kShared ? 1 : Config::kBlocks;
  const int matrix = lane / 8;
  // A's matrices: rows 0-7, 8-15 of tokens 0-7, then of tokens 8-15; with 8 rows, tokens 0-7 and 8-15.
  const int a_token = (Config::kRows == 8 ? matrix % 2 : matrix / 2) * 8 + lane % 8;
  std::uint32_t a_from[kSlices][Config::kHeights], b_from[2];
#pragma unroll
  for (int j = 0; j < kSlices; ++j)
#pragma unroll
    for (int h = 0; h < Config::kHeights; ++h)
      a_from[j][h] = ptx::shared_address(dy.memory) +
                     dy.offset(a_token, row_chunk[j] + 2 * h + (Config::kRows == 8 ? 0 : matrix % 2));
      // B's matrices: tokens 0-7, 8-15 of one column chunk, then of the next.
#pragma unroll
  for (int pair = 0; pair < 2; ++pair)
    b_from[pair] = ptx::shared_address(x.memory) +
                   x.offset(matrix % 2 * 8 + lane % 8, column_chunk + 2 * pair + matrix / 2);
  const int a_step = 16 * dy.token_bytes(), b_step = 16 * x.token_bytes();
  int a_at = token * dy.token_bytes(), b_at = token * x.token_bytes();
#pragma unroll 2
  for (; token < end; token += 16, a_at += a_step, b_at += b_step) {
    std::uint32_t a[kSlices][Config::kHeights][4], b[2][4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) ptx::ldmatrix_x4_trans(b[pair], b_from[pair] + b_at);
#pragma unroll
    for (int j = 0; j < kSlices; ++j) load_rows<Config>(a[j], a_from[j], a_at);
#pragma unroll
    for (int h = 0; h < Config::kHeights; ++h)
#pragma unroll
      for (int t = 0; t < Config::kTiles; ++t)
        Config::Type::mma(sums[h][t], a[kShared ? 0 : t / Config::kBlockTiles][h], b[t / 2][t % 2 * 2],
                          b[t / 2][t % 2 * 2 + 1]);
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
