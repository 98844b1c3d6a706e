#include "layout/columns.h"

#include <string>

#include "core/check.h"

namespace sparseloom {
namespace {

const char* const kRebuild = "rebuild the index from its pattern";

std::string entry(const char* name, std::int64_t i, std::int64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value);
}

}  // namespace

void layout::validate_columns(const char* op, const IndexView& index, const TransposedView& by) {
  const std::int64_t rows = index.block_rows(), cols = index.block_cols(), blocks = index.blocks;
  core::require_memory(op, {{"ccol", by.ccol}, {"row", by.row, blocks > 0}, {"slot", by.slot, blocks > 0}});
  if (by.ccol[0] != 0) core::fail(op, "ccol[0] = 0", entry("ccol", 0, by.ccol[0]), kRebuild);
  for (std::int64_t c = 0; c < cols; ++c)
    if (by.ccol[c + 1] < by.ccol[c] || by.ccol[c + 1] > blocks)
      core::fail(op, "ccol in ascending order up to " + std::to_string(blocks),
                 entry("ccol", c + 1, by.ccol[c + 1]) + " after " + entry("ccol", c, by.ccol[c]), kRebuild);
  if (by.ccol[cols] != blocks)
    core::fail(op, "ccol to end at " + std::to_string(blocks), entry("ccol", cols, by.ccol[cols]), kRebuild);
  // Rows ascend in a column and no row has a column twice, so blocks that are where the index says are all
  // different.
  for (std::int64_t c = 0; c < cols; ++c)
    for (std::int64_t i = by.ccol[c], before = -1; i < by.ccol[c + 1]; before = by.row[i++]) {
      const std::int64_t row = by.row[i], slot = by.slot[i];
      if (row <= before || row >= rows)
        core::fail(op, "ascending block rows below " + std::to_string(rows) + " inside a column",
                   entry("row", i, row) + ", block column " + std::to_string(c), kRebuild);
      if (slot < index.crow[row] || slot >= index.crow[row + 1] || index.col[slot] != c)
        core::fail(op,
                   "the slot of the block in row " + std::to_string(row) + ", column " + std::to_string(c),
                   entry("slot", i, slot), kRebuild);
    }
}

}  // namespace sparseloom
