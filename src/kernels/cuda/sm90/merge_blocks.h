// Blocks with sides of 8 and 16 as units of 32, which wgmma and TMA take, or of 8 as units of 16, one operand
// of mma.sync: present blocks at their places, zeros between.
//
//   unit rows    lists of block rows, merged        16 x 16:  | # . | . . | # # |      one unit for each 2 x
//   2 blocks of which
//                                                             | . # | . . | # . |      any is stored
//
//   workspace    values [units][um][un]    begin, end [lines]    along [units]    slot [units]
//
// Line u (unit row in forward, unit column in dx) has its units from begin[u] = u * across on, room for all
// that exist, so that no line waits for the number of the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// Of a matrix in blocks, 16-bit. least: the side below which blocks are merged.
struct Merging {
  BlockShape block, unit;
  std::int64_t lines, across;  // units: along the outputs, along the reduction

  Merging(Direction direction, std::int64_t rows, std::int64_t cols, BlockShape block_, std::int32_t least)
      : block(block_), unit{std::max(block_.rows, least), std::max(block_.cols, least)} {
    const std::int64_t down = (rows + unit.rows - 1) / unit.rows, over = (cols + unit.cols - 1) / unit.cols;
    lines = direction == Direction::dx ? over : down;
    across = direction == Direction::dx ? down : over;
  }
  static constexpr std::int32_t kWgmmaLeast = 32, kMmaLeast = 16;

  int blocks_down() const { return unit.rows / block.rows; }
  int blocks_over() const { return unit.cols / block.cols; }
  std::int64_t units() const { return lines * across; }  // there is room for
  /// Units of which some block is stored, blocks lying at random.
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
    return values_bytes() + static_cast<std::size_t>(2 * lines + 2 * units()) * sizeof(std::int32_t);
  }
  /// Shared memory of a thread block: which block is where in a line's units, and the line's list.
  std::size_t table_bytes() const {
    return static_cast<std::size_t>(across) * static_cast<std::size_t>(blocks_down() * blocks_over() + 1) *
           sizeof(std::int32_t);
  }
  static constexpr std::size_t kMostTableBytes = 47 << 10;  // what no kernel needs to ask for, less a word
  /// Whether a line's units fit the table, and all of them 32-bit rows.
  bool possible() const {
    return table_bytes() <= kMostTableBytes && units() * unit.rows < std::int64_t{1} << 31;
  }
};

/// Fills args.workspace from args.index (forward) or args.transposed (dx) and args.values, 16-byte aligned.
/// One launch; its cudaError_t.
int merge_blocks(const MatmulArgs& args, const Merging& merging) noexcept;

/// The product over the units that lie in args.workspace then.
MatmulArgs merged(const MatmulArgs& args, const Merging& merging) noexcept;

/// The same as a problem, with as many units as are likely.
inline Problem merged(const Problem& p, std::int32_t least) {
  const Merging merging(p.direction, p.rows, p.cols, p.block, least);
  Problem units = p;
  units.block = merging.unit;
  units.blocks = static_cast<std::int64_t>(merging.likely_units(p.blocks));
  return units;
}

}  // namespace sparseloom::kernels::cuda
