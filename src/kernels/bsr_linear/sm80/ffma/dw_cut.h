// How the fp32 dW kernel by FFMA cuts the tokens into segments (pieces; split-K), on the host. row.cpp
// derives the schedule, the workspace and the prediction from it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda::ffma {

/// Columns of X that a thread block gathers for its block row; a multiple of every bn.
constexpr int kDwColumns = 128;
/// Rows of dY of a thread block: a block's, or half of 128.
constexpr int dw_rows(int bm) { return bm < 64 ? bm : 64; }

/// Tokens of a step.
constexpr int kDwTokens = 16;

// Seven or eight thread blocks share a multiprocessor. Twice as many items per thread block balance the
// items' different lengths to some 5 %.
constexpr std::int64_t kDwItemsPerMultiprocessor = 16;
// Shorter segments would not repay the second launch of 5 us, and with 8 bytes per segment and sum, the
// partial sums would cost more than a tenth of the products.
constexpr std::int64_t kDwFewestTokens = 512;
// A thread adds up the products of a segment one by one. In longer segments the rounding errors of fp32
// exceeded the tolerance of a tile (testing/tolerance.py): 1.19 of it at 60270 tokens.
constexpr std::int64_t kDwMostTokens = 16384;

struct DwCut {
  int log2_group;  // log2(blocks of a work item)
  int parts;       // row ranges of a block row, one per thread block
  std::int64_t piece_tokens;
  int pieces;
};

/// Cuts the tokens if the items alone are too few to fill the GPU, and long sums in any case. Up to 16384
/// tokens, partial sums stay below some 140 MB on any problem, since many blocks are not cut.
inline DwCut cut_tokens(std::int64_t m, std::int64_t block_rows, BlockShape block, std::int64_t blocks,
                        int multiprocessors) {
  DwCut cut;
  cut.log2_group = std::countr_zero(static_cast<unsigned>(kDwColumns / block.cols));
  cut.parts = block.rows / dw_rows(block.rows);
  // The lengths of block rows are on the device; the last item of each is assumed to be half full.
  const std::int64_t filled =
      std::min(blocks, (blocks >> cut.log2_group) + (std::min(blocks, block_rows) + 1) / 2) * cut.parts;
  const std::int64_t wanted = (kDwItemsPerMultiprocessor * std::max(1, multiprocessors) + filled - 1) /
                              std::max<std::int64_t>(1, filled);
  const std::int64_t pieces =
      std::max(std::clamp<std::int64_t>(m / kDwFewestTokens, 1, std::max<std::int64_t>(1, wanted)),
               (m + kDwMostTokens - 1) / kDwMostTokens);
  constexpr std::int64_t kStep = kDwTokens;  // segments are whole steps
  cut.piece_tokens = std::max(kStep, ((m + pieces - 1) / pieces + kStep - 1) / kStep * kStep);
  cut.pieces =
      std::max(1, static_cast<int>((m + cut.piece_tokens - 1) /
                                   cut.piece_tokens));  // without tokens: one segment, which writes zeros
  return cut;
}

}  // namespace sparseloom::kernels::cuda::ffma
