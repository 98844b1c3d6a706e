// The arithmetic of wide.cuh: 32 outputs x 32 k of W from shared memory, X from registers.
//
// The order of k is free as long as both operands use the same one. Lane 4 g + q holds 16 bytes of a row of W
// and of a token, k = 8 q .. 8 q + 7 of the 32. It feeds them unchanged to two mma, words 0 and 1 to the
// first, words 2 and 3 to the second. W is the mma's A operand (swap-AB), so the tensor cores work on
// multiples of 8 tokens, not of 16.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/rows/config.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Sums [tile][token tile][0..3]. Lane 4 g + q holds the outputs line_row(tile, g) (elements 0 and 1) and
/// line_row(tile, g + 8) (elements 2 and 3), of the tokens 2 q and 2 q + 1 of the tile's 8.
template <class C>
using Sums = float[2][C::kTokenTiles][4];

/// X for a step: 16 bytes of token g of each tile of 8 tokens.
template <class C>
using Tokens = uint4[C::kTokenTiles];

/// Offset in a stage of the 16 bytes that lane 4 g + q reads from row line_row(0, g). For the stage's second
/// 32 k, XOR the offset with 64.
template <class C>
__device__ __forceinline__ std::uint32_t lane_piece(int lane) {
  if constexpr (!C::kWide) return static_cast<std::uint32_t>(lane) * 16;
  const int row = line_row<C>(0, lane / 4);
  return static_cast<std::uint32_t>(row * 128 + ((lane % 4) ^ row) * 16);
}

/// Multiplies one step. fragment: the shared address of this lane's 16 bytes of the 32 k.
template <class C>
__device__ __forceinline__ void multiply(Sums<C>& sums, const Tokens<C>& x, std::uint32_t fragment) {
  constexpr std::uint32_t kRow = C::kStageColumns * 2;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    std::uint32_t low[4], high[4];
    ptx::ld_shared(low, fragment + tile * 16 * kRow);
    ptx::ld_shared(high, fragment + (tile * 16 + 8) * kRow);
    const std::uint32_t first[4] = {low[0], high[0], low[1], high[1]};
    const std::uint32_t second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) C::Mma::mma(sums[tile][t], first, x[t].x, x[t].y);
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) C::Mma::mma(sums[tile][t], second, x[t].z, x[t].w);
  }
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
