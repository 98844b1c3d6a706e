// set_topology on the CPU: writes a new topology into the tables of the old one.
// kernels/shared/bsr/topology.cuh does the same arithmetic on CUDA: with p mask cells before cell i in
// row-major order, min(p, capacity) + min(i - p, fill) blocks lie before it.
#include <algorithm>

#include "layout/tables.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

// Walks the grid in row-major order and calls at(row, column, slot, whether the mask has it) for every cell
// that gets a block.
template <class At>
void for_each_block(const std::uint8_t* mask, const TopologyTables& tables, std::int64_t fill, At at) {
  std::int64_t slot = 0, left = tables.capacity - fill;  // left: remaining cells of the mask
  for (std::int64_t r = 0; r < tables.block_rows; ++r)
    for (std::int64_t c = 0; c < tables.block_cols; ++c) {
      const bool named = *mask++ != 0;
      std::int64_t& budget = named ? left : fill;
      if (budget == 0) continue;
      --budget;
      at(r, c, slot++, named);
    }
}

}  // namespace

void set_topology(const std::uint8_t* mask, const TopologyTables& tables) {
  layout::require_tables("set_topology", mask, tables);
  const std::int64_t cells = tables.block_rows * tables.block_cols;
  std::int64_t named = 0;
  for (std::int64_t i = 0; i < cells; ++i) named += mask[i] != 0;
  *tables.requested = static_cast<std::int32_t>(named);
  const std::int64_t fill = std::max<std::int64_t>(tables.capacity - named, 0);

  // Two walks, because the second overwrites the input of the first. The first fills `moved`.
  std::int64_t row = -1, old = 0, end = 0;
  for_each_block(mask, tables, fill, [&](std::int64_t r, std::int64_t c, std::int64_t slot, bool by_mask) {
    if (r != row) {
      row = r;
      // Clamp the offsets to the arrays even if the old tables are invalid: they come from tensors that
      // anyone may have written to.
      old = std::clamp<std::int64_t>(tables.crow[r], 0, tables.capacity);
      end = std::clamp<std::int64_t>(tables.crow[r + 1], 0, tables.capacity);
    }
    while (old < end && tables.col[old] < c) ++old;
    const bool stays = by_mask && old < end && tables.col[old] == c;
    tables.moved[slot] = stays ? static_cast<std::int32_t>(old) : -1;
  });

  // Write the row index, then derive the column index from it.
  std::fill(tables.crow, tables.crow + tables.block_rows + 1, 0);
  for_each_block(mask, tables, fill, [&](std::int64_t r, std::int64_t c, std::int64_t slot, bool) {
    tables.col[slot] = static_cast<std::int32_t>(c);
    ++tables.crow[r + 1];
  });
  for (std::int64_t r = 0; r < tables.block_rows; ++r) tables.crow[r + 1] += tables.crow[r];
  constexpr BlockShape kAny{8, 8};  // any block shape works: transpose_index counts blocks only
  const IndexView index{tables.block_rows * kAny.rows,
                        tables.block_cols * kAny.cols,
                        kAny,
                        tables.capacity,
                        tables.crow,
                        tables.col};
  transpose_index(index, tables.ccol, tables.row, tables.slot);
}

}  // namespace sparseloom
