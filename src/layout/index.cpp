// The row index of a BSR matrix: validation of one from outside, transposition into the column index, and
// hashing.
#include <algorithm>
#include <limits>
#include <string>

#include "core/check.h"
#include "core/rng.h"
#include "pattern/grid.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

std::string entry(const char* name, std::int64_t i, std::int64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value);
}

const char* kRebuild = "rebuild the index from its pattern";

void validate_crow(const char* op, std::int64_t block_rows, std::int64_t blocks,
                   std::span<const std::int32_t> crow) {
  if (static_cast<std::int64_t>(crow.size()) != block_rows + 1) {
    core::fail(op, "crow of " + std::to_string(block_rows + 1) + " entries, one per block row and one more",
               std::to_string(crow.size()), "check rows and the block shape against the index");
  }
  if (crow[0] != 0) core::fail(op, "crow[0] = 0", entry("crow", 0, crow[0]), kRebuild);
  for (std::int64_t r = 0; r < block_rows; ++r) {
    if (crow[r + 1] < crow[r]) {
      core::fail(op, "crow in ascending order",
                 entry("crow", r + 1, crow[r + 1]) + " after " + entry("crow", r, crow[r]), kRebuild);
    }
    // Checked here and not only at the end, so that no entry of col is read through an offset past its end.
    if (crow[r + 1] > blocks) {
      core::fail(op, "crow to end at " + std::to_string(blocks) + ", the length of col",
                 entry("crow", r + 1, crow[r + 1]), kRebuild);
    }
  }
  if (crow[block_rows] != blocks) {
    core::fail(op, "crow to end at " + std::to_string(blocks) + ", the length of col",
               entry("crow", block_rows, crow[block_rows]), kRebuild);
  }
}

void validate_col(const char* op, std::int64_t block_rows, std::int64_t block_cols,
                  std::span<const std::int32_t> crow, std::span<const std::int32_t> col) {
  const std::string allowed =
      block_cols ? "; allowed 0.." + std::to_string(block_cols - 1) : "; the matrix has no block columns";
  for (std::int64_t r = 0; r < block_rows; ++r) {
    const std::string in_row = ", block row " + std::to_string(r);
    for (std::int64_t i = crow[r]; i < crow[r + 1]; ++i) {
      if (col[i] < 0 || col[i] >= block_cols) {
        core::fail(op, "block columns inside the matrix", entry("col", i, col[i]) + in_row + allowed,
                   kRebuild);
      }
      if (i == crow[r] || col[i] > col[i - 1]) continue;
      const std::string pair = entry("col", i, col[i]) + " after " + entry("col", i - 1, col[i - 1]) + in_row;
      if (col[i] == col[i - 1])
        core::fail(op, "each block once", "a duplicate: " + pair, "add the two blocks' values into one");
      core::fail(op, "block columns in ascending order inside a row", pair,
                 "sort each row's columns, and the values with them");
    }
  }
}

}  // namespace

void validate_index(const char* op, std::int64_t rows, std::int64_t cols, BlockShape block,
                    std::span<const std::int32_t> crow, std::span<const std::int32_t> col) {
  const pattern::Grid grid = pattern::require_grid(op, rows, cols, block);
  if (col.size() > static_cast<std::size_t>(kMaxBlocks)) {
    core::fail(op, "at most 2^31 - 1 blocks", std::to_string(col.size()), "use a larger block");
  }
  core::require_memory(op, {{"crow", crow.data(), !crow.empty()}, {"col", col.data(), !col.empty()}});
  validate_crow(op, grid.rows, static_cast<std::int64_t>(col.size()), crow);
  validate_col(op, grid.rows, grid.cols, crow, col);
}

void transpose_index(const IndexView& index, std::int32_t* ccol, std::int32_t* row, std::int32_t* slot) {
  const bool stored = index.blocks > 0;
  core::require_memory("transpose_index", {{"crow", index.crow, index.rows > 0},
                                           {"col", index.col, stored},
                                           {"ccol", ccol},
                                           {"row", row, stored},
                                           {"slot", slot, stored}});
  const std::int64_t block_rows = index.block_rows(), block_cols = index.block_cols();
  std::fill(ccol, ccol + block_cols + 1, 0);
  for (std::int64_t i = 0; i < index.blocks; ++i) ++ccol[index.col[i] + 1];
  for (std::int64_t c = 0; c < block_cols; ++c) ccol[c + 1] += ccol[c];
  // A counting sort. Rows are walked in order, so they are written in order. ccol[c] serves as the cursor of
  // column c and ends where column c + 1 begins, so shifting the array by one restores it. It needs no
  // scratch memory.
  for (std::int64_t r = 0; r < block_rows; ++r) {
    for (std::int32_t i = index.crow[r]; i < index.crow[r + 1]; ++i) {
      const std::int32_t at = ccol[index.col[i]]++;
      row[at] = static_cast<std::int32_t>(r);
      slot[at] = i;
    }
  }
  for (std::int64_t c = block_cols; c > 0; --c) ccol[c] = ccol[c - 1];
  ccol[0] = 0;
}

std::int64_t pattern_version(const IndexView& index) {
  core::require_memory("pattern_version", {{"crow", index.crow}, {"col", index.col, index.blocks > 0}});
  std::uint64_t hash = 0;
  // The hash absorbs values, not bytes, so it does not depend on the machine's byte order. mix64 is a
  // bijection, so a step loses no information.
  const auto absorb = [&hash](std::int64_t value) {
    hash = core::mix64((hash + core::kGoldenGamma) ^ static_cast<std::uint64_t>(value));
  };
  absorb(index.rows);
  absorb(index.cols);
  absorb(index.block.rows);
  absorb(index.block.cols);
  absorb(index.blocks);
  for (std::int64_t r = 0; r <= index.block_rows(); ++r) absorb(index.crow[r]);
  for (std::int64_t i = 0; i < index.blocks; ++i) absorb(index.col[i]);
  return static_cast<std::int64_t>(hash >> 1);
}

}  // namespace sparseloom
