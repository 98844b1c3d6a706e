// Patterns written as they look: '#' present, anything else absent, one string per block row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparseloom/pattern.h"

namespace sparseloom::test {

inline BlockPattern from_picture(const std::vector<std::string>& picture, BlockShape block = {8, 8}) {
  const auto grid_rows = static_cast<std::int64_t>(picture.size());
  const auto grid_cols = picture.empty() ? 0 : static_cast<std::int64_t>(picture[0].size());
  BlockPattern pattern(grid_rows * block.rows, grid_cols * block.cols, block);
  for (std::int64_t r = 0; r < grid_rows; ++r) {
    for (std::int64_t c = 0; c < grid_cols; ++c) pattern.set(r, c, picture[r][c] == '#');
  }
  return pattern;
}

inline std::vector<std::int64_t> row_counts(const BlockPattern& pattern) {
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) counts.push_back(pattern.row_count(r));
  return counts;
}

}  // namespace sparseloom::test
