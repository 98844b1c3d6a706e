// A topology of any number of blocks up to a capacity, in host memory. kernels/shared/bsr does the same on
// CUDA, with the same results.
#include "layout/moving.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "layout/tables.h"
#include "sparseloom/topology.h"

namespace sparseloom {
namespace {

using layout::Counts, layout::counts_of;

/// Offsets into the lists, clamped: they come from tensors that anyone may have written to.
std::int64_t end_of_row(const std::int32_t* crow, std::int64_t row, std::int64_t capacity) {
  return std::clamp<std::int64_t>(crow[row], 0, capacity);
}

/// The cell of each stored block, in slot order; -1 for one outside of the grid.
std::vector<std::int64_t> stored_cells(const BlockChoice& choice) {
  std::vector<std::int64_t> cells(
      static_cast<std::size_t>(end_of_row(choice.crow, choice.block_rows, choice.capacity)), -1);
  for (std::int64_t r = 0; r < choice.block_rows; ++r)
    for (std::int64_t i = end_of_row(choice.crow, r, choice.capacity);
         i < std::min(end_of_row(choice.crow, r + 1, choice.capacity), std::ssize(cells)); ++i)
      if (const std::int64_t c = choice.col[i]; c >= 0 && c < choice.block_cols)
        cells[static_cast<std::size_t>(i)] = r * choice.block_cols + c;
  return cells;
}

/// The `count` cells with the highest scores, of equal ones the lowest.
void keep_best(std::vector<std::int64_t>& places, std::int64_t count, const float* scores) {
  if (count < std::ssize(places))
    std::nth_element(places.begin(), places.begin() + count, places.end(),
                     [=](std::int64_t a, std::int64_t b) {
                       return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                     });
  places.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, std::ssize(places))));
}

}  // namespace

void update_topology(const std::uint8_t* mask, const TopologyTables& tables, std::int32_t* flags) {
  layout::require_tables("update_topology", mask, tables);
  core::require_memory("update_topology", {{"flags", flags}});
  const std::int64_t cells = tables.block_rows * tables.block_cols;
  std::int64_t named = 0;
  for (std::int64_t i = 0; i < cells; ++i) named += mask[i] != 0;
  *tables.requested = static_cast<std::int32_t>(named);
  if (named > tables.capacity) {
    *flags |= kTopologyOverflow;
    std::iota(tables.moved, tables.moved + tables.capacity, 0);
    return;
  }
  // The mask has room, so set_topology rewrites the tables for exactly its cells. It reads the old ones
  // through crow, and leaves the entries after the stored blocks unchanged.
  TopologyTables exact = tables;
  exact.capacity = named;
  // Its clamps would cut old offsets to the new number: compute the moves here, with the old number.
  std::vector<std::int32_t> moved(static_cast<std::size_t>(tables.capacity), kSlotStaysFree);
  const std::int64_t live = end_of_row(tables.crow, tables.block_rows, tables.capacity);
  std::fill_n(moved.begin(), std::max(live, named), -1);
  std::int64_t slot = 0;
  for (std::int64_t r = 0; r < tables.block_rows; ++r) {
    std::int64_t old = end_of_row(tables.crow, r, tables.capacity);
    const std::int64_t end = end_of_row(tables.crow, r + 1, tables.capacity);
    for (std::int64_t c = 0; c < tables.block_cols; ++c) {
      if (mask[r * tables.block_cols + c] == 0) continue;
      while (old < end && tables.col[old] < c) ++old;
      if (old < end && tables.col[old] == c) moved[static_cast<std::size_t>(slot)] = static_cast<int>(old);
      ++slot;
    }
  }
  set_topology(mask, exact);
  std::copy(moved.begin(), moved.end(), tables.moved);
}

void choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags) {
  layout::require_choice("choose_blocks", choice, mask, flags);
  const std::int64_t cells = choice.block_rows * choice.block_cols;
  const std::vector<std::int64_t> stored = stored_cells(choice);
  const auto live = std::ssize(stored);
  const auto take = [&](const std::vector<std::int64_t>& chosen) {
    for (const std::int64_t cell : chosen)
      if (cell >= 0) mask[cell] = 1;
  };
  std::int32_t why = 0;
  for (std::int64_t i = 0; i < live; ++i)
    if (std::isnan(choice.scores[i])) why |= kTopologyNaN;
  for (std::int64_t i = 0; choice.growth != nullptr && i < cells; ++i)
    if (!(choice.growth[i] < std::numeric_limits<float>::infinity())) why |= kTopologyNoGradient;
  if (cells > 0) std::memset(mask, 0, static_cast<std::size_t>(cells));
  if (why != 0) {
    *flags |= why;
    return take(stored);
  }
  const Counts counts = counts_of(choice.budget, live, cells, choice.growth != nullptr);
  std::vector<std::int64_t> slots(stored.size());
  std::iota(slots.begin(), slots.end(), 0);
  keep_best(slots, counts.keep, choice.scores);
  for (std::int64_t& slot : slots) slot = stored[static_cast<std::size_t>(slot)];
  take(slots);
  if (choice.growth == nullptr) return;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < cells; ++i)
    if (mask[i] == 0 && choice.growth[i] > -std::numeric_limits<float>::infinity()) others.push_back(i);
  keep_best(others, counts.all - counts.keep, choice.growth);
  take(others);
}

}  // namespace sparseloom
