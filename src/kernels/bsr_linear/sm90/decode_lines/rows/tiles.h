// The warps of the instances of rows/kernel.cuh and the registers of their threads, by tiles of 8 tokens: 1,
// 2, 4 or 8.
#pragma once

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Warps that a multiprocessor has room for: a lane has 128 registers with 16 warps, 168 with 12 and 255
/// with 8. narrow: blocks of 16 x 16.
constexpr int warps_of(bool narrow, int token_tiles) {
  return token_tiles <= 2 ? 16 : narrow || token_tiles == 4 ? 12 : 8;
}

/// Registers of a thread as they are allocated, in multiples of eight; bf16 and f16 have the same. Constants,
/// from ptxas of CUDA 13.0, because they decide how many strips a thread block takes (schedule.cpp), which a
/// plan shall say where there is no driver to ask. With other numbers no result changes: only where the
/// thread blocks of the next launch gather.
constexpr int registers_of(bool narrow, bool wide, int token_tiles) {
  const int tile = token_tiles == 8 ? 3 : token_tiles == 4 ? 2 : token_tiles - 1;
  constexpr int kNarrow[] = {80, 104, 144}, kColumns32[] = {96, 120, 168, 208},
                kWide[] = {104, 128, 168, 192};
  return narrow ? kNarrow[tile] : wide ? kWide[tile] : kColumns32[tile];
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
