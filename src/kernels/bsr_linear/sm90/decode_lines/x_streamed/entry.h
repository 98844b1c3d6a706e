// Decides when sm90_decode_lines streams X through shared memory (kernel.cuh); used by the schedule and the
// cost model of ../rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode_lines/entry.h"

namespace sparseloom::kernels::cuda::decode_lines::x_streamed {

inline constexpr int kLeastTokens = 17;  // fewer tokens need few requests to L2 (rows/narrow.cuh)
inline constexpr int kTokens = 32;
inline constexpr int kMostStrips = 16;  // per cluster, whose two thread blocks halve their blocks
// The two instances: up to kFewWarps consumer warps with stages of more blocks of W, or up to kMostStrips
// with stages of fewer.
inline constexpr int kFewWarps = 12, kFewStageBlocks = 6, kManyStageBlocks = 4;

/// Block rows per cluster: the fewest waves, with block rows evenly spread over them. pairs: clusters that
/// run at once.
constexpr std::int64_t strips_each(std::int64_t strips, std::int64_t pairs) {
  const std::int64_t rounds =
      std::max<std::int64_t>((strips + pairs * kMostStrips - 1) / (pairs * kMostStrips), 1);
  return std::max<std::int64_t>((strips + pairs * rounds - 1) / (pairs * rounds), 1);
}

/// Bytes that L2 sends: all of X to every cluster, and W once.
constexpr double moved_bytes(std::int64_t rows, std::int64_t cols, std::int64_t blocks, std::int64_t pairs) {
  const std::int64_t strips = (rows + kSide - 1) / kSide,
                     used = (strips + strips_each(strips, pairs) - 1) / strips_each(strips, pairs);
  return static_cast<double>(used * cols) * (kTokens * 2) + static_cast<double>(blocks) * (kSide * kSide * 2);
}

/// Whether streaming X moves its bytes faster than L2 answers requests block by block. If X is not streamed,
/// the tokens of a block are 32 requests to L2, of 32 bytes each, and its values are 4. An H200's L2 answers
/// 145 requests per nanosecond, or sends 9.5 KB of whole rows.
constexpr bool passes(std::int64_t m, std::int64_t rows, std::int64_t cols, std::int64_t blocks,
                      std::int64_t pairs) {
  constexpr double kRequests = 36, kRequestsPerNs = 145, kBytesPerNs = 9500;
  if (m < kLeastTokens || m > kTokens || pairs < 1) return false;
  return moved_bytes(rows, cols, blocks, pairs) / kBytesPerNs <
         static_cast<double>(blocks) * kRequests / kRequestsPerNs;
}

}  // namespace sparseloom::kernels::cuda::decode_lines::x_streamed
