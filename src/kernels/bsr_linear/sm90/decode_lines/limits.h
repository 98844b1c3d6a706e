// What the row of sm90_decode_lines and its launches must agree on. Plain C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda::decode_lines {

inline constexpr int kSide = 16;  // of square blocks, for which other instances serve than for wider ones
inline constexpr int kBlockBytes = kSide * kSide * 2;

/// Whether the kernels' 32-bit counts hold these sizes.
constexpr bool counts_fit(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t block_rows = (rows + block.rows - 1) / block.rows,
                     strips = std::max<std::int64_t>(block.rows / 32, 1);
  return std::max(rows, cols) <= kMost && (blocks + block_rows) * strips <= kMost &&
         blocks * block.rows <= kMost;
}

}  // namespace sparseloom::kernels::cuda::decode_lines
