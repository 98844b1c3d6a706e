// The checks of changes of topology, on every device.
#pragma once

#include <cstdint>
#include <string>

#include "core/check.h"
#include "sparseloom/topology.h"

namespace sparseloom::layout {

/// Throws Error on a grid of 2^28 cells or more, and on a capacity that exceeds its cells. T: TopologyTables
/// or BlockChoice.
template <class T>
void require_grid(const char* op, const T& tables) {
  constexpr std::int64_t kMostCells = std::int64_t{1} << 28;
  const std::int64_t r = tables.block_rows, c = tables.block_cols;
  if (r < 0 || c < 0 || r >= kMostCells || c >= kMostCells || r * c >= kMostCells)
    core::fail(op, "a grid of fewer than 2^28 blocks", core::shape(r, c), "use a larger block");
  if (tables.capacity < 0 || tables.capacity > r * c)
    core::fail(op, "tables of 0 to " + std::to_string(r * c) + " blocks, the cells of the grid",
               std::to_string(tables.capacity), "pass the tables that belong to this mask");
}

/// require_grid's checks, and that all memory is present.
inline void require_tables(const char* op, const std::uint8_t* mask, const TopologyTables& tables) {
  require_grid(op, tables);
  const bool stores = tables.capacity > 0;
  core::require_memory(op, {{"mask", mask, tables.block_rows * tables.block_cols > 0},
                            {"crow", tables.crow},
                            {"col", tables.col, stores},
                            {"ccol", tables.ccol},
                            {"row", tables.row, stores},
                            {"slot", tables.slot, stores},
                            {"moved", tables.moved, stores},
                            {"requested", tables.requested}});
}
inline void require_choice(const char* op, const BlockChoice& choice, const std::uint8_t* mask,
                           const std::int32_t* flags) {
  require_grid(op, choice);
  const bool stores = choice.capacity > 0;
  core::require_memory(op, {{"mask", mask, choice.block_rows * choice.block_cols > 0},
                            {"flags", flags},
                            {"crow", choice.crow},
                            {"col", choice.col, stores},
                            {"scores", choice.scores, stores},
                            {"budget", choice.budget}});
}

}  // namespace sparseloom::layout
