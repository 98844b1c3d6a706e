// How the tensor-core dW kernel cuts the tokens into segments (pieces; split-K), on the host. Its row
// (row_parts.h) derives the schedule, the workspace and the prediction from it; the kernel uses the sizes
// alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// Columns of X that a thread block gathers for its block row; a multiple of every bn. 128 rows x 256 columns
/// would need 256 accumulators in each of 128 threads. With twice the threads, only one thread block would
/// fit on a multiprocessor, and nothing would hide its barriers.
constexpr int mma_dw_columns(int bm) { return bm == 128 ? 128 : 256; }

/// Tokens per step of the pipeline: 64 bytes of every column, which keeps four stages of any bm below the 99
/// KB of an sm_86.
constexpr int mma_dw_tokens(int element_bytes) { return 64 / element_bytes; }

namespace mma::dw {

// The sustained rates of one multiprocessor in this kernel. mma.sync reaches 600 TF/s on the 132
// multiprocessors of an H200, and the shared-memory reads of two thread blocks leave about half of this; L2
// delivers 5.5 TB/s for rows of 64 bytes. Only the ratio of these rates to the costs below matters.
constexpr double kFlops = 2.2e12;  // 16-bit; TF32 half
constexpr double kL2Bytes = 4.2e10;
// Partial sums are written and read once each, mostly in L2.
constexpr double kPartialBytes = 3e10;
// Seconds of the second launch: host overhead, and the draining and filling of the GPU.
constexpr double kLaunch = 5e-6;
// A multiprocessor with one thread block reaches about this fraction of its rate with two: nothing hides the
// barriers.
constexpr double kAlone = 0.67;
// With fewer steps, filling the ring and the stores would dominate.
constexpr std::int64_t kFewestChunks = 8;
// The sums of the segments are added one after the other. More segments were not tried.
constexpr std::int64_t kMostPieces = 128;

struct Size {
  std::int64_t m, block_rows, blocks;
  BlockShape block;
  int element_bytes;
};

struct Cut {
  int log2_group;  // log2(blocks of a work item)
  std::int64_t piece_tokens;
  int pieces;
  double slower;      // factor on the time with all multiprocessors busy to the end
  double read_bytes;  // bytes read from L2
};

/// Cuts the tokens if there are too few items to fill the GPU, or if the last wave would be short, and if the
/// gain exceeds the cost of the partial sums.
inline Cut cut_tokens(const Size& size, int multiprocessors) {
  const int log2_group =
      std::countr_zero(static_cast<unsigned>(mma_dw_columns(size.block.rows) / size.block.cols));
  const int chunk = mma_dw_tokens(size.element_bytes);
  const std::int64_t chunks = std::max<std::int64_t>(
      1, (size.m + chunk - 1) / chunk);  // without tokens: one segment, which writes zeros
  const double m = static_cast<double>(size.m), blocks = static_cast<double>(size.blocks),
               sms = std::max(1, multiprocessors);
  const double elements = blocks * size.block.rows * size.block.cols;

  // The lengths of the block rows are on the device. If they are random, the last item of a block row is half
  // full on average.
  const double group = static_cast<double>(1 << log2_group);
  const double rows = static_cast<double>(std::min(size.block_rows, size.blocks));
  const double items = std::min(blocks, blocks / group + rows * (group - 1) / (2 * group));
  const double flops = 2 * m * elements / (size.element_bytes == 2 ? kFlops : kFlops / 2);
  const double read = m * size.element_bytes * (blocks * size.block.cols + items * size.block.rows);
  const double busy = std::max(flops, read / kL2Bytes) / sms;  // seconds with every multiprocessor busy

  const auto slower = [&](std::int64_t pieces) {
    const double per_sm = items * static_cast<double>(pieces) / sms;  // thread blocks per multiprocessor
    // The number is exact only if an item is one block; otherwise the last wave counts as half full.
    return std::max(1 / kAlone, log2_group == 0 ? std::ceil(per_sm) : per_sm + 0.5) / per_sm;
  };
  const auto seconds = [&](std::int64_t pieces) {
    const double partial =
        pieces == 1 ? 0 : kLaunch + 2 * 4 * elements * static_cast<double>(pieces) / (kPartialBytes * sms);
    return busy * slower(pieces) + partial;
  };
  std::int64_t best = 1;
  double best_seconds = seconds(1);
  // More than four thread blocks per multiprocessor do not balance the load better.
  for (std::int64_t pieces = 2; pieces <= std::min(kMostPieces, chunks / kFewestChunks); ++pieces) {
    if (items * static_cast<double>(pieces - 1) > 4 * sms) break;
    const double these = seconds(pieces);
    if (these < best_seconds) best = pieces, best_seconds = these;
  }
  const std::int64_t piece_chunks = (chunks + best - 1) / best;
  return {log2_group, piece_chunks * chunk, static_cast<int>((chunks + piece_chunks - 1) / piece_chunks),
          slower(best), read};
}

}  // namespace mma::dw
}  // namespace sparseloom::kernels::cuda
