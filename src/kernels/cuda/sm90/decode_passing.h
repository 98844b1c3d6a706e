// When sm90_decode_lines lets X pass through shared memory (decode_passing.cuh): asked by the launch and by
// the cost model.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparseloom::kernels::cuda::decode90::passing {

inline constexpr int kSide = 16;         // of blocks
inline constexpr int kLeastTokens = 17;  // fewer ask little of L2 (decode_line_narrow.cuh)
inline constexpr int kTokens = 32;
inline constexpr int kMostLines = 16;  // of two thread blocks, which half of X passes each

/// Lines that two thread blocks have: even shares of as few rounds as may be.
constexpr std::int64_t lines_each(std::int64_t lines, std::int64_t pairs) {
  const std::int64_t rounds =
      std::max<std::int64_t>((lines + pairs * kMostLines - 1) / (pairs * kMostLines), 1);
  return std::max<std::int64_t>((lines + pairs * rounds - 1) / (pairs * rounds), 1);
}

/// Bytes that L2 sends: all of X for every two thread blocks, and W.
constexpr double moved_bytes(std::int64_t rows, std::int64_t cols, std::int64_t blocks, std::int64_t pairs) {
  const std::int64_t lines = (rows + kSide - 1) / kSide,
                     used = (lines + lines_each(lines, pairs) - 1) / lines_each(lines, pairs);
  return static_cast<double>(used * cols) * (kTokens * 2) + static_cast<double>(blocks) * (kSide * kSide * 2);
}

/// A block's tokens are 32 requests to L2, of 32 bytes each, where they are not passed; and 4 for its values.
/// 145 a nanosecond on an H200, and 9.5 KB of whole rows.
constexpr bool passes(std::int64_t m, std::int64_t rows, std::int64_t cols, std::int64_t blocks,
                      std::int64_t pairs) {
  constexpr double kRequests = 36, kRequestsPerNs = 145, kBytesPerNs = 9500;
  if (m < kLeastTokens || m > kTokens || pairs < 1) return false;
  return moved_bytes(rows, cols, blocks, pairs) / kBytesPerNs <
         static_cast<double>(blocks) * kRequests / kRequestsPerNs;
}

}  // namespace sparseloom::kernels::cuda::decode90::passing
