// BlockIndex: the owning index, built from a pattern or from validated arrays.
#include <limits>

#include "core/check.h"
#include "sparseloom/layout.h"

namespace sparseloom {

BlockIndex::BlockIndex(const BlockPattern& pattern)
    : rows_(pattern.rows()), cols_(pattern.cols()), block_(pattern.block()) {
  const std::int64_t blocks = pattern.count();
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    core::fail("BlockIndex", "at most 2^31 - 1 blocks", std::to_string(blocks), "use a larger block");
  }
  crow_.reserve(static_cast<std::size_t>(pattern.block_rows()) + 1);
  col_.reserve(static_cast<std::size_t>(blocks));
  crow_.push_back(0);
  // Every column is written, and counted only if present. That needs no branch, which half of the cells of a
  // random pattern would mispredict.
  std::vector<std::int32_t> in_row(static_cast<std::size_t>(pattern.block_cols()) + 1);
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
    std::size_t count = 0;
    for (std::int64_t c = 0; c < pattern.block_cols(); ++c)
      in_row[count] = static_cast<std::int32_t>(c), count += pattern.test(r, c);
    col_.insert(col_.end(), in_row.begin(), in_row.begin() + static_cast<std::ptrdiff_t>(count));
    crow_.push_back(static_cast<std::int32_t>(col_.size()));
  }
  finish();
}

BlockIndex::BlockIndex(std::int64_t rows, std::int64_t cols, BlockShape block,
                       std::span<const std::int32_t> crow, std::span<const std::int32_t> col)
    : rows_(rows), cols_(cols), block_(block) {
  validate_index("BlockIndex", rows, cols, block, crow, col);
  crow_.assign(crow.begin(), crow.end());
  col_.assign(col.begin(), col.end());
  finish();
}

void BlockIndex::finish() {
  const IndexView index = view();
  ccol_.resize(static_cast<std::size_t>(index.block_cols()) + 1);
  row_.resize(col_.size());
  slot_.resize(col_.size());
  transpose_index(index, ccol_.data(), row_.data(), slot_.data());
  version_ = pattern_version(index);
}

IndexView BlockIndex::view() const noexcept {
  return {rows_, cols_, block_, static_cast<std::int64_t>(col_.size()), crow_.data(), col_.data()};
}

TransposedView BlockIndex::transposed() const noexcept { return {ccol_.data(), row_.data(), slot_.data()}; }

BlockPattern BlockIndex::pattern() const {
  BlockPattern result(rows_, cols_, block_);
  const IndexView index = view();
  for (std::int64_t r = 0; r < index.block_rows(); ++r) {
    for (std::int32_t i = crow_[r]; i < crow_[r + 1]; ++i) result.set(r, col_[i]);
  }
  return result;
}

}  // namespace sparseloom
