// BSR: how the present blocks lie in memory. Values once; rows and columns are two index lists over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/pattern.h"

namespace sparseloom {

/// Row index of a rows x cols BSR matrix; trivially copyable, borrows its arrays. Block i holds values[i * bm
/// * bn ...], row-major inside the block (bm output features by bn input features); padding of ragged blocks
/// is zero.
struct IndexView {
  std::int64_t rows = 0, cols = 0;
  BlockShape block;
  std::int64_t blocks = 0;             // stored blocks
  const std::int32_t* crow = nullptr;  // [block_rows() + 1], blocks of row r: crow[r] .. crow[r + 1] - 1
  const std::int32_t* col = nullptr;   // [blocks], strictly ascending inside a row

  std::int64_t block_rows() const noexcept { return block.rows ? (rows + block.rows - 1) / block.rows : 0; }
  std::int64_t block_cols() const noexcept { return block.cols ? (cols + block.cols - 1) / block.cols : 0; }
  std::int64_t block_elements() const noexcept { return std::int64_t{block.rows} * block.cols; }
};

/// Column index on the same values: blocks of column c are values[slot[i]], in row row[i], for i of ccol[c]
/// .. ccol[c + 1] - 1.
struct TransposedView {
  const std::int32_t* ccol = nullptr;  // [block_cols() + 1]
  const std::int32_t* row = nullptr;   // [blocks], strictly ascending inside a column
  const std::int32_t* slot = nullptr;  // [blocks], position of the block in the row order
};

/// Bounds, order and duplicates of indices from outside, in O(blocks); the Error names the first bad entry.
/// crow.size() must be block_rows + 1, col.size() the number of blocks.
SPARSELOOM_API void validate_index(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block,
                                   std::span<const std::int32_t> crow, std::span<const std::int32_t> col);

/// Fills ccol [block_cols + 1], row [blocks], slot [blocks] from a valid row index.
SPARSELOOM_API void transpose_index(const IndexView& index, std::int32_t* ccol, std::int32_t* row,
                                    std::int32_t* slot);

/// Hash of the shape and the indices: the same pattern has the same version in every process. Never negative.
SPARSELOOM_API std::int64_t pattern_version(const IndexView& index);

/// The version of every index whose tables are rewritten in place: its plans depend on shape and number of
/// blocks alone.
inline constexpr std::int64_t kDynamicVersion = -1;

/// Both directions of an index over a grid of block_rows x block_cols cells, in arrays that keep their place
/// and size while the topology changes: always exactly `capacity` blocks, so that every plan, grid and
/// workspace made for that number stays right.
struct TopologyTables {
  std::int64_t block_rows = 0, block_cols = 0;
  std::int64_t capacity = 0;      // 0 .. block_rows * block_cols
  std::int32_t* crow = nullptr;   // [block_rows + 1], as IndexView
  std::int32_t* col = nullptr;    // [capacity]
  std::int32_t* ccol = nullptr;   // [block_cols + 1], as TransposedView
  std::int32_t* row = nullptr;    // [capacity]
  std::int32_t* slot = nullptr;   // [capacity]
  std::int32_t* moved = nullptr;  // [capacity]: where the block in this slot lay before; -1: it is new
  std::int32_t* requested =
      nullptr;  // [1]: cells that the last mask named; other than capacity: it was cut or filled up
};

/// Rewrites the tables, which hold a valid index, for mask [block_rows * block_cols], row-major, != 0:
/// present. Of more cells than `capacity` the first in row-major order are taken. Fewer are filled up with
/// the first other cells; those are new blocks even where one lay there before, so that after move_blocks
/// they hold zeros and the product is the mask's. Allocates nothing.
SPARSELOOM_API void set_topology(const std::uint8_t* mask, const TopologyTables& tables);

/// Owning, validated, immutable index with both directions.
class SPARSELOOM_API BlockIndex {
 public:
  explicit BlockIndex(const BlockPattern& pattern);
  /// Validates; throws Error naming the first bad entry.
  BlockIndex(std::int64_t rows, std::int64_t cols, BlockShape block, std::span<const std::int32_t> crow,
             std::span<const std::int32_t> col);

  IndexView view() const noexcept;
  TransposedView transposed() const noexcept;
  std::int64_t version() const noexcept { return version_; }
  BlockPattern pattern() const;

 private:
  void finish();
  std::int64_t rows_, cols_;
  BlockShape block_;
  std::vector<std::int32_t> crow_, col_, ccol_, row_, slot_;
  std::int64_t version_ = 0;
};

/// values <- the blocks of `dense` that the index names; padding becomes zero. dense is [rows, cols]; values
/// holds blocks * bm * bn elements of the same dtype. Throws Error when shapes differ. A copy: exact.
SPARSELOOM_API void pack(const ConstMatrixView& dense, const IndexView& index, void* values);

/// dense <- values at their places, zero elsewhere. A copy, never a product: NaN and Inf stay where they are.
SPARSELOOM_API void unpack(const IndexView& index, const void* values, const MatrixView& dense);

enum class BlockNorm : std::uint8_t { l1, l2, max };

/// scores [block_rows * block_cols], fp32 from fp64 sums; padding does not count. Throws Error on a wrong
/// size.
SPARSELOOM_API void block_scores(const ConstMatrixView& dense, BlockShape block, BlockNorm norm,
                                 std::span<float> scores);

/// An owning block-sparse matrix for C++ users; torch keeps values and indices in tensors of its own.
class SPARSELOOM_API BsrMatrix {
 public:
  /// Zero values.
  BsrMatrix(BlockIndex index, DType dtype);
  static BsrMatrix pack(const ConstMatrixView& dense, const BlockPattern& pattern);

  const BlockIndex& index() const noexcept { return index_; }
  DType dtype() const noexcept { return dtype_; }
  void* values() noexcept { return values_.data(); }
  const void* values() const noexcept { return values_.data(); }
  void unpack(const MatrixView& dense) const;

 private:
  BlockIndex index_;
  DType dtype_;
  std::vector<std::byte> values_;
};

}  // namespace sparseloom
