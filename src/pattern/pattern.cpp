// BlockPattern: bits, counts and set algebra.
#include "sparseloom/pattern.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "pattern/grid.h"

namespace sparseloom {
namespace {

constexpr std::int64_t kWordBits = 64;

bool supported(std::int32_t side) {
  return side == 8 || side == 16 || side == 32 || side == 64 || side == 128;
}

std::string describe(const BlockPattern& pattern) {
  return core::shape(pattern.rows(), pattern.cols()) + " in blocks of " + to_string(pattern.block());
}

}  // namespace

std::string to_string(BlockShape block) {
  return std::to_string(block.rows) + "x" + std::to_string(block.cols);
}

void require_supported(const char* op, BlockShape block) {
  if (supported(block.rows) && supported(block.cols)) return;
  core::fail(op, "a block of {8, 16, 32, 64, 128} x {8, 16, 32, 64, 128}", to_string(block),
             "use block 32 or 64; ragged edges need no smaller block");
}

BlockPattern::BlockPattern(std::int64_t rows, std::int64_t cols, BlockShape block)
    : rows_(rows), cols_(cols), block_(block) {
  const pattern::Grid grid = pattern::require_grid("BlockPattern", rows, cols, block);
  block_rows_ = grid.rows;
  block_cols_ = grid.cols;
  words_per_row_ = core::ceil_div(block_cols_, kWordBits);
  bits_.resize(static_cast<std::size_t>(block_rows_ * words_per_row_));
}

bool BlockPattern::test(std::int64_t r, std::int64_t c) const noexcept {
  return (bits_[r * words_per_row_ + c / kWordBits] >> (c % kWordBits)) & 1u;
}

void BlockPattern::set(std::int64_t r, std::int64_t c, bool present) noexcept {
  std::uint64_t& word = bits_[r * words_per_row_ + c / kWordBits];
  const std::uint64_t bit = std::uint64_t{1} << (c % kWordBits);
  word = present ? word | bit : word & ~bit;
}

std::int64_t BlockPattern::count() const noexcept {
  std::int64_t blocks = 0;
  for (const std::uint64_t word : bits_) blocks += std::popcount(word);
  return blocks;
}

std::int64_t BlockPattern::row_count(std::int64_t r) const noexcept {
  std::int64_t blocks = 0;
  for (std::int64_t w = 0; w < words_per_row_; ++w) blocks += std::popcount(bits_[r * words_per_row_ + w]);
  return blocks;
}

PatternStats BlockPattern::stats() const {
  PatternStats stats;
  if (block_rows_ == 0 || block_cols_ == 0) return stats;
  const std::int64_t last_width = cols_ - (block_cols_ - 1) * block_.cols;
  stats.row_min = block_cols_;
  for (std::int64_t r = 0; r < block_rows_; ++r) {
    const std::int64_t in_row = row_count(r);
    const std::int64_t height = std::min<std::int64_t>(block_.rows, rows_ - r * block_.rows);
    const std::int64_t lost_width = test(r, block_cols_ - 1) ? block_.cols - last_width : 0;
    stats.blocks += in_row;
    stats.elements += height * (in_row * block_.cols - lost_width);
    stats.row_min = std::min(stats.row_min, in_row);
    stats.row_max = std::max(stats.row_max, in_row);
  }
  stats.row_mean = static_cast<double>(stats.blocks) / static_cast<double>(block_rows_);
  stats.block_density = stats.row_mean / static_cast<double>(block_cols_);
  stats.element_density = static_cast<double>(stats.elements) / static_cast<double>(rows_ * cols_);
  return stats;
}

template <class WordOp>
BlockPattern BlockPattern::combined(const char* op, const BlockPattern& other, WordOp word_op) const {
  if (rows_ != other.rows_ || cols_ != other.cols_ || block_ != other.block_) {
    core::fail(op, "two patterns of the same shape and block", describe(*this) + " and " + describe(other),
               "build both with the same rows, cols and block");
  }
  BlockPattern result = *this;
  for (std::size_t i = 0; i < bits_.size(); ++i) result.bits_[i] = word_op(bits_[i], other.bits_[i]);
  return result;
}

BlockPattern BlockPattern::operator&(const BlockPattern& other) const {
  return combined("pattern &", other, [](std::uint64_t a, std::uint64_t b) { return a & b; });
}
BlockPattern BlockPattern::operator|(const BlockPattern& other) const {
  return combined("pattern |", other, [](std::uint64_t a, std::uint64_t b) { return a | b; });
}
BlockPattern BlockPattern::operator^(const BlockPattern& other) const {
  return combined("pattern ^", other, [](std::uint64_t a, std::uint64_t b) { return a ^ b; });
}
BlockPattern BlockPattern::operator-(const BlockPattern& other) const {
  return combined("pattern -", other, [](std::uint64_t a, std::uint64_t b) { return a & ~b; });
}

BlockPattern BlockPattern::operator~() const {
  BlockPattern result = *this;
  const std::int64_t tail = block_cols_ % kWordBits;
  const std::uint64_t tail_mask = tail ? (std::uint64_t{1} << tail) - 1 : ~std::uint64_t{0};
  for (std::size_t i = 0; i < bits_.size(); ++i) {
    const bool last_of_row = static_cast<std::int64_t>(i) % words_per_row_ == words_per_row_ - 1;
    result.bits_[i] = ~bits_[i] & (last_of_row ? tail_mask : ~std::uint64_t{0});
  }
  return result;
}

BlockPattern BlockPattern::transposed() const {
  BlockPattern result(cols_, rows_, {block_.cols, block_.rows});
  for (std::int64_t r = 0; r < block_rows_; ++r) {
    for (std::int64_t w = 0; w < words_per_row_; ++w) {
      for (std::uint64_t word = bits_[r * words_per_row_ + w]; word; word &= word - 1) {
        result.set(w * kWordBits + std::countr_zero(word), r);
      }
    }
  }
  return result;
}

}  // namespace sparseloom
