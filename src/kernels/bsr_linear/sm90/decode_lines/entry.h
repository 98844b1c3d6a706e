// The entry of sm90_decode_lines, the instances of rows/kernel.cuh, one translation unit per dtype so that
// they compile in parallel, and the limits on which the row and its launches agree. Plain C++. cuda/rows.h
// has the contract of entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda {

/// Forward of small batches on Hopper (compute capability 9.0 only), with a group of warps per strip of 32
/// outputs of a block row (blocks of 16 x 16: per block row): bf16 and f16, with blocks of 32, 64 and 128 in
/// any pairing, or of 16 x 16. Supports any number of rows, a multiple of 8 columns, and m <= kDecodeTokens
/// (16 x 16: kNarrowBlockRowTokens). A long block row keeps its warps busy after the others are done, so
/// uneven ones go to other kernels. With a schedule of x_streamed, for many blocks of 16 x 16 and more than
/// 16 tokens, X streams through shared memory. Operands are aligned and some block is stored.
/// A glu is of at most kGluTokens tokens and wide blocks: each instance costs a compiler five seconds, and
/// more tokens hide a launch.
inline constexpr int kNarrowBlockRowTokens = 32, kGluTokens = 16;
int sm90_decode_lines(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode_lines::rows {

/// Blocks of 32, 64 and 128 on either side, and of 16 x 16.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode_lines::rows

}  // namespace sparseloom::kernels::cuda

namespace sparseloom::kernels::cuda::decode_lines {

inline constexpr int kSide = 16;  // side of the square blocks that have instances of their own
inline constexpr int kBlockBytes = kSide * kSide * 2;

/// Whether these sizes fit the kernels' 32-bit counts.
constexpr bool counts_fit(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t block_rows = (rows + block.rows - 1) / block.rows,
                     strips = std::max<std::int64_t>(block.rows / 32, 1);
  return std::max(rows, cols) <= kMost && (blocks + block_rows) * strips <= kMost &&
         blocks * block.rows <= kMost;
}

}  // namespace sparseloom::kernels::cuda::decode_lines

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Warps that fit on a multiprocessor: a lane has 128 registers with 16 warps, 168 with 12 and 255 with 8.
/// narrow: blocks of 16 x 16.
constexpr int warps_of(bool narrow, int token_tiles) {
  return token_tiles <= 2 ? 16 : narrow || token_tiles == 4 ? 12 : 8;
}

/// Registers allocated per thread, in multiples of eight; bf16 and f16 have the same. They are constants,
/// from ptxas of CUDA 13.0, because they decide how many strips a thread block takes (rows/schedule.cpp),
/// which a plan must say without a driver to ask. Other numbers change no result, only the placement of the
/// next launch's thread blocks.
constexpr int registers_of(bool narrow, bool wide, int token_tiles) {
  const int tile = token_tiles == 8 ? 3 : token_tiles == 4 ? 2 : token_tiles - 1;
  constexpr int kNarrow[] = {80, 104, 144}, kColumns32[] = {96, 120, 168, 208},
                kWide[] = {104, 128, 168, 192};
  return narrow ? kNarrow[tile] : wide ? kWide[tile] : kColumns32[tile];
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
