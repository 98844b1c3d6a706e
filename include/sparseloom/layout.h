// BSR (block compressed sparse row): the memory layout of the stored blocks. The values are stored once; the
// row index and the column index are two lists over the same values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/pattern.h"

namespace sparseloom {

/// Row index of a rows x cols BSR matrix. Trivially copyable; it borrows its arrays. Block i holds bm * bn
/// values from values[i * bm * bn] on, row-major inside the block (bm output features by bn input features).
/// Padding of ragged blocks is zero.
struct IndexView {
  std::int64_t rows = 0, cols = 0;
  BlockShape block;
  std::int64_t blocks = 0;  // stored blocks
  // [block_rows() + 1]; block row r stores the blocks crow[r] .. crow[r + 1] - 1.
  const std::int32_t* crow = nullptr;
  // [blocks], the block column of each block; strictly ascending inside a block row.
  const std::int32_t* col = nullptr;

  std::int64_t block_rows() const noexcept { return block.rows ? (rows + block.rows - 1) / block.rows : 0; }
  std::int64_t block_cols() const noexcept { return block.cols ? (cols + block.cols - 1) / block.cols : 0; }
  std::int64_t block_elements() const noexcept { return std::int64_t{block.rows} * block.cols; }
};

/// Column index over the same values: block column c stores the blocks values[slot[i]], which lie in block
/// row row[i], for i in ccol[c] .. ccol[c + 1] - 1.
struct TransposedView {
  const std::int32_t* ccol = nullptr;  // [block_cols() + 1]
  const std::int32_t* row = nullptr;   // [blocks], block rows, strictly ascending inside a block column
  const std::int32_t* slot = nullptr;  // [blocks], position of the block in the row index
};

/// Checks indices from outside for bounds, order and duplicates, in O(blocks). crow.size() must be block_rows
/// + 1; col.size() is the number of blocks. Throws Error naming the first bad entry; `op` is the operation
/// that the Error names.
SPARSELOOM_API void validate_index(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block,
                                   std::span<const std::int32_t> crow, std::span<const std::int32_t> col);

/// Fills ccol [block_cols + 1], row [blocks] and slot [blocks] from a valid row index. Throws Error on null
/// arrays.
SPARSELOOM_API void transpose_index(const IndexView& index, std::int32_t* ccol, std::int32_t* row,
                                    std::int32_t* slot);

/// Hash of the shape and the indices (SplitMix64's mixing function over their values). The same pattern has
/// the same version in every process. Never negative.
SPARSELOOM_API std::int64_t pattern_version(const IndexView& index);

/// Row index and column index of a grid of block_rows x block_cols cells, in arrays that keep their address
/// and size while the topology changes. There are always exactly `capacity` blocks, so every plan, launch
/// grid and workspace made for that number stays valid.
struct TopologyTables {
  std::int64_t block_rows = 0, block_cols = 0;
  std::int64_t capacity = 0;      // 0 .. block_rows * block_cols
  std::int32_t* crow = nullptr;   // [block_rows + 1], as in IndexView
  std::int32_t* col = nullptr;    // [capacity]
  std::int32_t* ccol = nullptr;   // [block_cols + 1], as in TransposedView
  std::int32_t* row = nullptr;    // [capacity]
  std::int32_t* slot = nullptr;   // [capacity]
  std::int32_t* moved = nullptr;  // [capacity]: the slot that this block had before; -1: it is new
  // [1]: the number of cells set in the last mask. If it differs from capacity, the mask was cut or filled
  // up.
  std::int32_t* requested = nullptr;
};

/// Rewrites the tables, which must hold a valid index, for mask [block_rows * block_cols], row-major; != 0:
/// present. If the mask sets more cells than `capacity`, the first ones in row-major order are used. If it
/// sets fewer, the first other cells fill the tables up. Those count as new blocks even if they were stored
/// before, so that after move_blocks they hold zeros and the product is that of the mask. Allocates nothing.
/// Throws Error for sizes that do not fit and for null arrays.
SPARSELOOM_API void set_topology(const std::uint8_t* mask, const TopologyTables& tables);

/// An owning, validated, immutable index: both the row index and the column index.
class SPARSELOOM_API BlockIndex {
 public:
  /// Throws Error when the pattern has more than 2^31 - 1 blocks.
  explicit BlockIndex(const BlockPattern& pattern);
  /// Calls validate_index, which throws Error naming the first bad entry.
  BlockIndex(std::int64_t rows, std::int64_t cols, BlockShape block, std::span<const std::int32_t> crow,
             std::span<const std::int32_t> col);

  IndexView view() const noexcept;
  TransposedView transposed() const noexcept;
  /// pattern_version(view()).
  std::int64_t version() const noexcept { return version_; }
  BlockPattern pattern() const;

 private:
  void finish();
  std::int64_t rows_, cols_;
  BlockShape block_;
  std::vector<std::int32_t> crow_, col_, ccol_, row_, slot_;
  std::int64_t version_ = 0;
};

/// values <- the blocks of `dense` that the index has; padding becomes zero. dense is [rows, cols]; values
/// holds blocks * bm * bn elements of the same dtype. The copy is exact. Throws Error when shapes differ, and
/// for null arrays; the index must be valid.
SPARSELOOM_API void pack(const ConstMatrixView& dense, const IndexView& index, void* values);

/// dense <- values at their positions, zero elsewhere. This copies and never multiplies: NaN and Inf do not
/// spread. Throws Error like pack.
SPARSELOOM_API void unpack(const IndexView& index, const void* values, const MatrixView& dense);

/// Norm over the elements of one block: sum of magnitudes, root of the sum of squares, largest magnitude.
enum class BlockNorm : std::uint8_t { l1, l2, max };

/// Writes the norm of each block to scores [block_rows * block_cols], row-major, fp32 rounded from fp64 sums.
/// Padding does not count. dense is f32, f16, bf16 or f64. Throws Error on a wrong size or dtype.
SPARSELOOM_API void block_scores(const ConstMatrixView& dense, BlockShape block, BlockNorm norm,
                                 std::span<float> scores);

/// An owning block-sparse matrix in host memory, for C++ users; the torch binding keeps values and indices in
/// torch tensors.
class SPARSELOOM_API BsrMatrix {
 public:
  /// A matrix of zeros.
  BsrMatrix(BlockIndex index, DType dtype);
  /// The blocks of `dense` that the pattern has, in dense's dtype. Throws Error when shapes differ.
  static BsrMatrix pack(const ConstMatrixView& dense, const BlockPattern& pattern);

  const BlockIndex& index() const noexcept { return index_; }
  DType dtype() const noexcept { return dtype_; }
  /// values [blocks, bm, bn].
  void* values() noexcept { return values_.data(); }
  const void* values() const noexcept { return values_.data(); }
  /// dense [rows, cols] <- this matrix. Throws Error when its shape or dtype differs.
  void unpack(const MatrixView& dense) const;

 private:
  BlockIndex index_;
  DType dtype_;
  std::vector<std::byte> values_;
};

}  // namespace sparseloom
