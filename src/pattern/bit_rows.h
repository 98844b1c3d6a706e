// Rows of bits that are united and counted word by word: one set of nodes per node.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace sparseloom::pattern {

class BitRows {
 public:
  BitRows(std::int64_t rows, std::int64_t cols)
      : words_((static_cast<std::size_t>(cols) + 63) / 64), bits_(static_cast<std::size_t>(rows) * words_) {}

  std::span<std::uint64_t> row(std::int64_t r) { return {bits_.data() + r * words(), words_}; }
  std::span<const std::uint64_t> row(std::int64_t r) const { return {bits_.data() + r * words(), words_}; }
  void set(std::int64_t r, std::int64_t c) { row(r)[c / 64] |= std::uint64_t{1} << (c % 64); }
  bool test(std::int64_t r, std::int64_t c) const { return row(r)[c / 64] >> (c % 64) & 1u; }
  std::int64_t count() const {
    std::int64_t bits = 0;
    for (const std::uint64_t word : bits_) bits += std::popcount(word);
    return bits;
  }

 private:
  std::int64_t words() const { return static_cast<std::int64_t>(words_); }

  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// into |= from.
inline void unite(std::span<std::uint64_t> into, std::span<const std::uint64_t> from) {
  for (std::size_t w = 0; w < into.size(); ++w) into[w] |= from[w];
}

}  // namespace sparseloom::pattern
