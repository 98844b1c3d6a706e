// Merges small blocks into units that tensor cores support: blocks with sides of 8 and 16 into units of 32
// for wgmma and TMA, or blocks of 8 into units of 16, one operand of mma.sync. Blocks keep their positions in
// a unit, with zeros between them.
//
//   two block rows      | # . | . . | # # |     A unit row merges the lists of its block rows. There is one
//   of 16 x 16          | . # | . . | # . |     unit for each 2 x 2 blocks of which any is stored.
//
//   workspace    values [units][um][un]    begin, end [block rows]    along [units]    slot [units]
//
// The units are the blocks of the merged matrix, so its block rows are unit rows (unit columns in dx). Block
// row u has its units from begin[u] = u * across on, with room for as many as can exist, so that no block row
// waits for the others' counts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// How a matrix of 16-bit blocks is merged. `least` is the side below which blocks are merged.
struct Merging {
  BlockShape block, unit;
  std::int64_t block_rows, across;  // units along the outputs, along the reduction

  Merging(Direction direction, std::int64_t rows, std::int64_t cols, BlockShape block_, std::int32_t least)
      : block(block_), unit{std::max(block_.rows, least), std::max(block_.cols, least)} {
    const std::int64_t down = (rows + unit.rows - 1) / unit.rows, over = (cols + unit.cols - 1) / unit.cols;
    block_rows = direction == Direction::dx ? over : down;
    across = direction == Direction::dx ? down : over;
  }
  static constexpr std::int32_t kWgmmaLeast = 32, kMmaLeast = 16;

  int blocks_down() const { return unit.rows / block.rows; }
  int blocks_over() const { return unit.cols / block.cols; }
  std::int64_t units() const { return block_rows * across; }  // the capacity
  /// The expected number of units with a stored block, if blocks are at random positions.
  double likely_units(std::int64_t blocks) const {
    const double cells = static_cast<double>(units()) * blocks_down() * blocks_over();
    return cells == 0
               ? 0
               : static_cast<double>(units()) *
                     (1 - std::pow(1 - static_cast<double>(blocks) / cells, blocks_down() * blocks_over()));
  }

  std::size_t values_bytes() const {
    return (static_cast<std::size_t>(units()) * static_cast<std::size_t>(unit.rows * unit.cols) * 2 + 255) /
           256 * 256;
  }
  std::size_t workspace_bytes() const {
    return values_bytes() + static_cast<std::size_t>(2 * block_rows + 2 * units()) * sizeof(std::int32_t);
  }
  /// Shared memory of a thread block: the slot of each block of a block row's units, and the list of these
  /// units.
  std::size_t table_bytes() const {
    return static_cast<std::size_t>(across) * static_cast<std::size_t>(blocks_down() * blocks_over() + 1) *
           sizeof(std::int32_t);
  }
  static constexpr std::size_t kMostTableBytes = 47 << 10;  // below the 48 KB that need no opt-in
  /// Whether a block row's units fit the table, and the rows of all units fit 32 bits.
  bool possible() const {
    return table_bytes() <= kMostTableBytes && units() * unit.rows < std::int64_t{1} << 31;
  }
};

/// Fills args.workspace, 16-byte aligned, from args.values and from args.index (forward) or args.transposed
/// (dx). It is one launch; returns its cudaError_t.
int merge_blocks(const MatmulArgs& args, const Merging& merging) noexcept;

/// The arguments of the product over the units in args.workspace.
MatmulArgs merged(const MatmulArgs& args, const Merging& merging) noexcept;

}  // namespace sparseloom::kernels::cuda
