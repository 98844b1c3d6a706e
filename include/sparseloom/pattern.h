// BlockPattern: which blocks of a matrix exist. Bits only: no values, no dtype.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparseloom/export.h"

namespace sparseloom {

/// Height (output features) and width (input features) of one block, each of {8, 16, 32, 64, 128}.
struct BlockShape {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

/// "32x64".
SPARSELOOM_API std::string to_string(BlockShape block);
/// Throws Error when a side is not one of {8, 16, 32, 64, 128}.
SPARSELOOM_API void require_supported(const char* op, BlockShape block);

/// Counts of a pattern. `elements` leaves out the padding of ragged edges; row figures count blocks per block
/// row.
struct PatternStats {
  std::int64_t blocks = 0;
  std::int64_t elements = 0;
  double block_density = 0;    // blocks / grid cells; 0 for an empty grid
  double element_density = 0;  // elements / (rows * cols); 0 for an empty matrix
  std::int64_t row_min = 0;
  std::int64_t row_max = 0;
  double row_mean = 0;
};

/// A rows x cols matrix cut into blocks; the last block row and column may be ragged. One bit per block.
class SPARSELOOM_API BlockPattern {
 public:
  /// No block present. Throws Error on negative sizes or an unsupported block shape.
  BlockPattern(std::int64_t rows, std::int64_t cols, BlockShape block);

  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t cols() const noexcept { return cols_; }
  BlockShape block() const noexcept { return block_; }
  std::int64_t block_rows() const noexcept { return block_rows_; }
  std::int64_t block_cols() const noexcept { return block_cols_; }

  /// Unchecked: 0 <= r < block_rows(), 0 <= c < block_cols().
  bool test(std::int64_t r, std::int64_t c) const noexcept;
  void set(std::int64_t r, std::int64_t c, bool present = true) noexcept;

  std::int64_t count() const noexcept;                    // present blocks
  std::int64_t row_count(std::int64_t r) const noexcept;  // present blocks of block row r
  PatternStats stats() const;

  /// Set algebra; both sides must have the same shape and block, else Error.
  BlockPattern operator&(const BlockPattern& other) const;
  BlockPattern operator|(const BlockPattern& other) const;
  BlockPattern operator^(const BlockPattern& other) const;
  BlockPattern operator-(const BlockPattern& other) const;  // present here, absent there
  BlockPattern operator~() const;
  BlockPattern transposed() const;
  friend bool operator==(const BlockPattern&, const BlockPattern&) = default;

  /// One character per block ('#' present, '.' absent); grids larger than max_side are averaged into cells
  /// drawn " .:-=+*#%@".
  std::string ascii(int max_side = 64) const;
  /// A self-contained SVG picture, at most `pixels` on its longer side.
  std::string svg(int pixels = 256) const;

 private:
  template <class WordOp>
  BlockPattern combined(const char* op, const BlockPattern& other, WordOp word_op) const;

  std::int64_t rows_, cols_, block_rows_, block_cols_, words_per_row_;
  BlockShape block_;
  std::vector<std::uint64_t> bits_;  // block row major, words_per_row_ words each; unused high bits are zero
};

/// Generators. `density` counts blocks of the grid, in [0, 1]; the same seed gives the same pattern on every
/// machine. Each throws Error on a density outside [0, 1], a negative size or an unsupported block.
namespace pattern {

/// llround(density * grid) blocks, uniform without replacement.
SPARSELOOM_API BlockPattern random(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                                   std::uint64_t seed);
/// The same exact total, every block row with its floor or ceiling share.
SPARSELOOM_API BlockPattern balanced(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                                     std::uint64_t seed);
/// The same exact total, every block row and every block column with the floor or ceiling of its share.
SPARSELOOM_API BlockPattern biregular(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                                      std::uint64_t seed);
/// Blocks at most `bandwidth` blocks away from the (stretched) diagonal, along the grid's shorter side;
/// bandwidth 0 is the diagonal alone: one block in each row or column of the longer side, none of the shorter
/// side empty.
SPARSELOOM_API BlockPattern banded(std::int64_t rows, std::int64_t cols, BlockShape block,
                                   std::int64_t bandwidth);
/// `groups` dense diagonal boxes, as even as the grid allows. 1 <= groups <= min(block_rows, block_cols),
/// else Error.
SPARSELOOM_API BlockPattern block_diagonal(std::int64_t rows, std::int64_t cols, BlockShape block,
                                           std::int64_t groups);
/// Every block present.
SPARSELOOM_API BlockPattern full(std::int64_t rows, std::int64_t cols, BlockShape block);
/// mask[r * block_cols + c] != 0: present. Throws Error when mask.size() is not the grid's size.
SPARSELOOM_API BlockPattern from_mask(std::int64_t rows, std::int64_t cols, BlockShape block,
                                      std::span<const std::uint8_t> mask);
/// The `count` highest scores (row-major over the grid); ties go to the lowest index; NaN is refused. 0 <=
/// count <= grid, else Error.
SPARSELOOM_API BlockPattern top_k(std::int64_t rows, std::int64_t cols, BlockShape block,
                                  std::span<const float> scores, std::int64_t count);
/// The same number of blocks, every block row with its highest scores: floor(count / block rows) of them, and
/// one more in the rows whose next best scores are the highest. Errors as top_k.
SPARSELOOM_API BlockPattern top_k_by_row(std::int64_t rows, std::int64_t cols, BlockShape block,
                                         std::span<const float> scores, std::int64_t count);

}  // namespace pattern
}  // namespace sparseloom
