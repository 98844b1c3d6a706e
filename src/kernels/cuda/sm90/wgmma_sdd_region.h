// dW of narrow blocks (16, 32) by regions, host side: how large a region is, what the product will take, and
// its scratch.
//
// A block row alone reads a row of X of 32 or 64 bytes for every token and block: TMA takes two clocks for
// each, whatever its width, and 132 multiprocessors together draw no more than 8 TB/s in rows of 64 bytes. A
// region, 384 x 384 to 512 x 768 of the matrix, reads each of its columns of dY and of X once, in rows of 128
// bytes, whatever lies in it: less time at block 32 from density 0.15 on, at block 16 always.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/sm90/wgmma_sdd_cut.h"
#include "kernels/cuda/sm90/wgmma_sdd_deal.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

constexpr int kBoxSide = 64;  // columns of X or dY that one copy brings
constexpr std::int64_t kMostCounts =
    12288;  // block rows x regions side by side: a byte each in shared memory
constexpr std::int64_t kMostRegions = 1024;  // so are the items of every region

/// Boxes of a region, of which two stages fit in shared memory, and the tokens of a stage.
constexpr int region_boxes(int block_rows) { return block_rows == 32 ? 12 : 20; }
constexpr int region_stage_tokens(int block_rows) {
  return block_rows == 32 ? kStep16.tokens : kStep16.tokens / 2;
}

/// Strips (four 16-column pieces of X by one block row, or by one of its own each) that an item may hold: 2
/// warpgroups of 176 or 144 sums a thread.
constexpr int region_strips(int block_rows) { return block_rows == 32 ? 22 : 36; }

struct Regions {
  int row_boxes = 0, column_boxes = 0;  // the sides of a region; 0: the pattern does not fit
  std::int64_t down = 0, across = 0;
  double rounds = 0, clocks = 0;
};

constexpr bool region_blocks(int rows, int columns) {
  return (rows == 16 || rows == 32) && (columns == 16 || columns == 32);
}

/// 16-sum chunks of a warpgroup in a part: of all strips of an item, which are no more than the blocks.
inline int region_chunks(const Size& size) {
  const int strips = static_cast<int>(std::min<std::int64_t>(region_strips(size.block_rows), size.blocks));
  return ((strips + 1) / 2 * size.block_rows + 31) / 32;
}

inline std::size_t region_part_bytes(const Size& size) {
  if (size.steps < 2 * kFewestSteps) return 0;
  return std::size_t{2} * static_cast<std::size_t>(region_chunks(size)) * 16 * 128 * 4;
}

/// What regions of these sides take where blocks lie at random. block_rows, block_columns: of the matrix.
inline Regions regions_of(const Size& size, std::int64_t block_rows, std::int64_t block_columns,
                          int row_boxes, int column_boxes) {
  const std::int64_t rows = row_boxes * kBoxSide / size.block_rows,
                     columns = column_boxes * kBoxSide / size.block_columns;
  Regions regions{
      row_boxes, column_boxes, (block_rows + rows - 1) / rows, (block_columns + columns - 1) / columns, 0, 0};
  if (block_rows * regions.across > kMostCounts || regions.down * regions.across > kMostRegions) return {};
  const double density = static_cast<double>(size.blocks) /
                         (static_cast<double>(block_rows) * static_cast<double>(block_columns));
  const double length = static_cast<double>(columns) * density;  // of a block row inside the region
  const bool units = size.block_rows == 16;                      // which an item has four of for each strip
  const double each = size.block_columns / 64.0;                 // strips of a block
  // The last strip of a row is on average half empty, unless the row is.
  const double strip_mean =
      units ? length * each * 4 : length * each + (1 - each) / 2 * (1 - std::exp(-length / each / 2));
  const double strips = static_cast<double>(rows) * strip_mean;
  const double spread =
      units ? each * 4 * std::sqrt(static_cast<double>(rows) * length * (1 - density))
            : std::sqrt(static_cast<double>(rows) * (length * (1 - density) * each * each + 0.06));
  const double room = region_strips(size.block_rows) * (units ? 4 : 1);
  const double over = 0.5 * std::erfc((room - strips) / spread / std::sqrt(2.0));
  const double passes = std::max(1.0, std::ceil(strips / room)) + (strips < room ? over : 0);
  const auto items =
      static_cast<std::int32_t>(static_cast<double>(regions.down * regions.across) * passes + 0.999);
  const Cut cut = cut_items(items, size.grid, size.steps);

  const auto step = [&](double busy) {
    const double bytes = static_cast<double>(size.step.column_bytes) * kBoxSide * (row_boxes + column_boxes);
    const double most = std::min(room, strips / std::ceil(strips / room) + 2 * spread);
    // ldmatrix and wgmma share the port of shared memory: 24 clocks for 32 rows of 16 tokens.
    // A unit is latency, eight times ldmatrix and mma.sync beside one other warp's: 38 to 41 clocks on an
    // H200 at densities .1 and .2.
    const double multiply = units ? 41 * most : 1.3 * most * 4 * 24;
    return std::max({bytes * busy / kL2Bytes, bytes / kPortBytes, multiply});
  };
  const double whole = static_cast<double>(cut.whole / size.grid);
  regions.rounds = whole;
  regions.clocks = whole * size.steps * step(size.grid);
  if (cut.rest > 0) {
    const std::int32_t steps = (size.steps - cut.tail + cut.pieces - 1) / cut.pieces;
    const double busy = static_cast<double>(cut.rest) * cut.pieces + cut.helpers;
    const double part =
        static_cast<double>(region_strips(size.block_rows)) * 64 * size.block_rows * 4 / kPortBytes + 1000;
    regions.rounds += static_cast<double>(cut.rest) / size.grid;
    regions.clocks += steps * step(busy) + (cut.pieces - 1 + (cut.tail > 0 ? 2 : 0)) * part;
  }
  // An H200 took half again as long: 290 to 788 us for blocks of 32 from .2 to .8.
  if (!units) regions.clocks *= 1.5;
  // Counting the blocks of all regions, and finding the strips of each item.
  regions.clocks += 8000 + 5000 * std::ceil(static_cast<double>(items) / size.grid);
  return regions;
}

/// The sides that cost least. narrow: of at most four boxes.
inline Regions choose_regions(const Size& size, std::int64_t block_rows, std::int64_t block_columns,
                              bool narrow = false) {
  constexpr struct {
    int rows, columns;
  } kSides[] = {{8, 12}, {8, 10}, {8, 8}, {7, 8}, {7, 7}, {6, 7},
                {6, 6},  {6, 4},  {4, 6}, {4, 4}, {2, 2}, {1, 1}};
  const int most = size.block_rows == 16
                       ? 12
                       : 6;  // of 16 rows a lane for each finds the units, so no more than 8 boxes of those
  Regions best;
  for (const auto& side : kSides) {
    if (std::max(side.rows, side.columns) > most) continue;
    if (narrow && std::max(side.rows, side.columns) > 4) continue;
    const Regions next = regions_of(size, block_rows, block_columns, side.rows, side.columns);
    if (next.row_boxes > 0 && (best.row_boxes == 0 || next.clocks < best.clocks)) best = next;
  }
  return best;
}

/// By block rows, which takes sides of 32 and more, or by regions, which takes 16 and 32 of 16-bit numbers:
/// whatever is expected to be done first. Neither: most_blocks and row_boxes are 0.
struct Way {
  bool by_regions = false;
  Deal deal{0, 0, 0};
  Regions regions;

  double rounds() const { return by_regions ? regions.rounds : deal.rounds; }
  double clocks() const { return by_regions ? regions.clocks : deal.clocks; }
  bool exists() const { return by_regions ? regions.row_boxes > 0 : deal.most_blocks > 0; }
};

/// narrow: smaller items or regions than the usual way's, a candidate of its own.
inline Way choose_way(const Size& size, std::int64_t block_rows, std::int64_t block_columns,
                      bool narrow = false) {
  Way way;
  if (std::min(size.block_rows, size.block_columns) >= 32) way.deal = deal(size, narrow);
  if (size.step.is_16_bit() && region_blocks(size.block_rows, size.block_columns))
    way.regions = choose_regions(size, block_rows, block_columns, narrow);
  way.by_regions =
      way.regions.row_boxes > 0 && (way.deal.most_blocks == 0 || way.regions.clocks < way.deal.clocks);
  return way;
}

/// A part for each thread block, and as many flags of 8 bytes as it has warps that multiply.
inline std::size_t workspace_bytes(const Size& size, const Way& way) {
  if (!way.exists()) return 0;
  const std::size_t part = way.by_regions ? region_part_bytes(size) : part_bytes(size, way.deal.most_blocks);
  return part == 0 ? 0 : static_cast<std::size_t>(size.grid) * (part + 8 * 8);
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
