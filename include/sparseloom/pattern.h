// BlockPattern: which blocks of a matrix exist, and the generators of patterns. A pattern is bits only: it
// has no values and no dtype.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparseloom/export.h"

namespace sparseloom {

/// Height (output features) and width (input features) of one block, each of {8, 16, 32, 64, 128}.
struct BlockShape {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

/// "32x64" for rows = 32, cols = 64.
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

  /// Whether block (r, c) is present. Unchecked: 0 <= r < block_rows(), 0 <= c < block_cols().
  bool test(std::int64_t r, std::int64_t c) const noexcept;
  void set(std::int64_t r, std::int64_t c, bool present = true) noexcept;

  std::int64_t count() const noexcept;                    // present blocks
  std::int64_t row_count(std::int64_t r) const noexcept;  // present blocks of block row r
  PatternStats stats() const;

  /// Set algebra. Both sides must have the same shape and block; else Error.
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
  std::vector<std::uint64_t>
      // Row-major over the grid, words_per_row_ words for each block row; unused high bits are 0.
      bits_;
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
/// The same exact total, every block row and every block column with the floor or ceiling of its share. Draws
/// by global curveball trades (Carstens, Berger & Strona 2018), whose limit is the uniform distribution.
SPARSELOOM_API BlockPattern biregular(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                                      std::uint64_t seed);
/// Blocks at most `bandwidth` blocks away from the (stretched) diagonal, along the grid's shorter side;
/// bandwidth 0 is the diagonal only: one block in each row or column of the longer side, none of the shorter
/// side empty.
SPARSELOOM_API BlockPattern banded(std::int64_t rows, std::int64_t cols, BlockShape block,
                                   std::int64_t bandwidth);
/// `groups` dense diagonal boxes, as even as the grid allows. 1 <= groups <= min(block_rows, block_cols),
/// otherwise Error. With `shuffle` each box takes its columns from all groups in turn: the weight of a layer
/// after a channel shuffle (Zhang et al. 2018, ShuffleNet), which mixes the groups.
SPARSELOOM_API BlockPattern block_diagonal(std::int64_t rows, std::int64_t cols, BlockShape block,
                                           std::int64_t groups, bool shuffle = false);

// Graphs: the block rows and block columns of a square grid are the n nodes of one graph, and a block is
// present where an edge joins its two nodes, and on the diagonal. A grid that is not square has the nodes of
// its shorter side; along the longer side neighbouring lines stand for one node, as evenly as possible, so
// that its shares and paths are those of the graph.

/// A small world (Watts & Strogatz 1998): the nodes form a ring, each joined to its k nearest ones; then each
/// edge moves its far end with probability p to a node drawn uniformly among those it does not join yet. On
/// a square grid n (k + 1) blocks. Throws Error when k is odd, negative or not below n (0 where n is 0), or p
/// lies outside [0, 1].
SPARSELOOM_API BlockPattern watts_strogatz(std::int64_t rows, std::int64_t cols, BlockShape block,
                                           std::int64_t k, double p, std::uint64_t seed);
/// The same on a torus of height x width = n nodes, numbered line by line: the k nearest ones are those of
/// the smallest distance in the plane (k = 4: above, below, left, right; 8: the corners too; at equal
/// distances in a fixed order). `height` 0 takes the squarest torus. n (k + 1) blocks. Throws Error also when
/// the height does not divide n, a side is below 3, or k exceeds the nodes that lie less than half a side
/// away.
SPARSELOOM_API BlockPattern watts_strogatz_2d(std::int64_t rows, std::int64_t cols, BlockShape block,
                                              std::int64_t k, double p, std::uint64_t seed,
                                              std::int64_t height = 0);
/// Preferential attachment (Barabasi & Albert 1999): a graph that grows from m nodes; each further node joins
/// m different ones, chosen with a probability proportional to their edges so far. The first m nodes form a
/// dense core. On a square grid 2 m (n - m) + n + m (m - 1) blocks; a few rows have many times the mean.
/// Throws Error when m is not in [1, n - 1].
SPARSELOOM_API BlockPattern barabasi_albert(std::int64_t rows, std::int64_t cols, BlockShape block,
                                            std::int64_t m, std::uint64_t seed);
/// The pattern and `edges` more edges, one after the other: each joins a node that has the fewest (equally
/// probable ones at a tie) to one drawn uniformly among those it does not join. Of a symmetric pattern the
/// nodes are the lines of the square grid, an edge is two blocks, and no node is joined to itself; of any
/// other the block rows are joined to the block columns, an edge is one block, and what counts is the share
/// of a line's blocks, so that empty lines are served first. Throws Error for more edges than are absent.
SPARSELOOM_API BlockPattern extra_edges(const BlockPattern& pattern, std::int64_t edges, std::uint64_t seed);
/// The strided pattern of sparse transformers (Child et al. 2019, both heads together): block (q, k) is
/// present where q and k are less than `stride` apart or a multiple of it; with `causal` where also k <= q.
/// Throws Error when stride < 1.
SPARSELOOM_API BlockPattern strided(std::int64_t rows, std::int64_t cols, BlockShape block,
                                    std::int64_t stride, bool causal = false);
/// Their fixed pattern: block (q, k) is present where q and k lie in one box of `stride` lines, or k is among
/// the last `summary` lines of its box; with `causal` where also k <= q. Throws Error when stride < 1 or
/// summary is not in [1, stride].
SPARSELOOM_API BlockPattern fixed(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t stride,
                                  std::int64_t summary = 1, bool causal = false);
/// The flat butterfly (Chen et al. 2022, "Pixelated Butterfly"): the union of the first `factors` factors of
/// a fast Fourier transform, where node i is joined to those whose number differs in one of the lowest
/// `factors` bits. n is the largest power of two that the grid's shorter side holds; `factors` 0 takes all
/// log2 n of them. On a square grid of n lines n (factors + 1) blocks. Throws Error for more factors than
/// that.
SPARSELOOM_API BlockPattern butterfly(std::int64_t rows, std::int64_t cols, BlockShape block,
                                      std::int64_t factors = 0);
/// A sparse graph each part of which is joined to the rest by about its even share of edges: a biregular
/// pattern, drawn again until its second singular value is at most 1.05 (sqrt(a - 1) + sqrt(b - 1)), near the
/// least that lines of a and b blocks allow (Lubotzky, Phillips & Sarnak 1988; Brito, Dumitriu & Harris
/// 2021). `degree` is a, the blocks of each line of the longer side; the shorter side has b = degree longer /
/// shorter, or its floor and ceiling. Unlike the graphs above it is not symmetric and has no diagonal. Throws
/// Error when the degree is not in [3, shorter side], or a hundred patterns have no such spectrum.
SPARSELOOM_API BlockPattern expander(std::int64_t rows, std::int64_t cols, BlockShape block,
                                     std::int64_t degree, std::uint64_t seed);
/// Every block present.
SPARSELOOM_API BlockPattern full(std::int64_t rows, std::int64_t cols, BlockShape block);
/// Block (r, c) is present where mask[r * block_cols + c] != 0. Throws Error when mask.size() is not the
/// grid's size.
SPARSELOOM_API BlockPattern from_mask(std::int64_t rows, std::int64_t cols, BlockShape block,
                                      std::span<const std::uint8_t> mask);
/// The `count` highest scores (row-major over the grid); ties go to the lowest index; NaN is refused. 0 <=
/// count <= grid, else Error. scores.size() must be the grid's size (block_scores makes such scores).
SPARSELOOM_API BlockPattern top_k(std::int64_t rows, std::int64_t cols, BlockShape block,
                                  std::span<const float> scores, std::int64_t count);
/// The same number of blocks, every block row with its highest scores: floor(count / block rows) of them, and
/// one more in the rows whose next best scores are the highest. Errors as in top_k.
SPARSELOOM_API BlockPattern top_k_by_row(std::int64_t rows, std::int64_t cols, BlockShape block,
                                         std::span<const float> scores, std::int64_t count);

/// A generator by its name, with its numbers in the order of its parameters: "random", "balanced" and
/// "biregular" take a density, "banded" a bandwidth, "block_diagonal" a number of groups (and shuffle),
/// "watts_strogatz" k and p, "watts_strogatz_2d" k and p (and height), "barabasi_albert" m, "strided" a
/// stride (and causal), "fixed" a stride (and summary, causal), "butterfly" nothing (or factors), "expander"
/// a degree. Those in brackets may be omitted from the last on; true is 1 and false 0. A generator that draws
/// nothing ignores the seed. Throws Error for an unknown name, another count of numbers or a count that is
/// not a whole number, and the generator's errors.
SPARSELOOM_API BlockPattern generate(std::string_view name, std::int64_t rows, std::int64_t cols,
                                     BlockShape block, std::span<const double> arguments, std::uint64_t seed);

}  // namespace pattern
}  // namespace sparseloom
