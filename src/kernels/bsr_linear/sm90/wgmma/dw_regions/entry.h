// The host side of dW by regions, for narrow blocks (16, 32): it chooses a region's size, predicts the
// product's time and its workspace for the row (../dw/row_parts.h), and reads the regions from a schedule.
//
// Block row by block row, the kernel reads a row of X of 32 or 64 bytes for every token and block. TMA takes
// two clocks per row, whatever its width, which limits its rate from L2. A region, 384 x 384 to 512 x 768 of
// the matrix, reads each of its columns of dY and of X once, in rows of 128 bytes, whatever blocks it stores.
// This measured faster at block 32 from density 0.15 on, and at block 16 always.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/cut.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

constexpr int kBoxSide = 64;  // columns of X or dY per copy
constexpr std::int64_t kMostCounts =
    12288;  // of block rows x regions side by side: each has a byte in shared memory
constexpr std::int64_t kMostRegions = 1024;  // each has a byte in shared memory for its items

/// The most boxes of a region such that two stages fit in shared memory with their tokens.
constexpr int region_boxes(int block_rows) { return block_rows == 32 ? 12 : 20; }
constexpr int region_stage_tokens(int block_rows) {
  return block_rows == 32 ? kStep16.tokens : kStep16.tokens / 2;
}

/// With block rows of 16, a lane finds each block row's units, so a region has at most 8 boxes of rows.
constexpr int kMostRowBoxes = 8;

/// The most strips of an item: the two warpgroups hold 176 or 144 sums per thread. A strip is four 16-column
/// fragments of X times one block row or, with block rows of 16, four units of a fragment and a block row.
constexpr int region_strips(int block_rows) { return block_rows == 32 ? 22 : 36; }

/// The grid of regions.
struct Grid {
  int row_boxes = 0, column_boxes = 0;  // the sides of a region; 0: regions cannot be used
  std::int64_t down = 0, across = 0;    // regions of the matrix
};

/// A grid with the predicted time of its product.
struct Regions : Grid {
  double rounds = 0, clocks = 0;  // as in Deal
};

/// Whether regions take blocks with these sides.
constexpr bool region_blocks(int rows, int columns) {
  return (rows == 16 || rows == 32) && (columns == 16 || columns == 32);
}

/// Chunks (16 sums per thread) of a warpgroup in a segment, for all strips of an item, which are at most its
/// blocks.
inline int region_chunks(const Size& size) {
  const int strips = static_cast<int>(std::min<std::int64_t>(region_strips(size.block_rows), size.blocks));
  return ((strips + 1) / 2 * size.block_rows + 31) / 32;
}

/// Bytes of workspace for the sums of one segment; 0 if no item can be cut.
inline std::size_t region_part_bytes(const Size& size) {
  if (size.steps < 2 * kFewestSteps) return 0;
  return std::size_t{2} * static_cast<std::size_t>(region_chunks(size)) * 16 * 128 * 4;
}

/// The grid of regions with these sides over block_rows x block_columns blocks. row_boxes is 0 if the kernel
/// cannot count them.
inline Grid grid_of(const BlockShape& block, std::int64_t block_rows, std::int64_t block_columns,
                    int row_boxes, int column_boxes) {
  const std::int64_t rows = row_boxes * kBoxSide / block.rows, columns = column_boxes * kBoxSide / block.cols;
  const Grid grid{row_boxes, column_boxes, (block_rows + rows - 1) / rows,
                  (block_columns + columns - 1) / columns};
  return block_rows * grid.across > kMostCounts || grid.down * grid.across > kMostRegions ? Grid{} : grid;
}

/// The grid that a schedule names; row_boxes is 0 if no instance has it.
inline Grid grid_of(const Schedule& schedule, const IndexView& index) {
  const int row_boxes = schedule.tile_m / kBoxSide, column_boxes = schedule.tile_n / kBoxSide;
  const bool named = schedule.method == Method::dw_wgmma_regions &&
                     region_blocks(index.block.rows, index.block.cols) && row_boxes > 0 && column_boxes > 0 &&
                     row_boxes * kBoxSide == schedule.tile_m && column_boxes * kBoxSide == schedule.tile_n &&
                     row_boxes + column_boxes <= region_boxes(index.block.rows) &&
                     row_boxes <= kMostRowBoxes && schedule.tile_k == region_stage_tokens(index.block.rows);
  return named ? grid_of(index.block, index.block_rows(), index.block_cols(), row_boxes, column_boxes)
               : Grid{};
}

/// Predicts the product with regions of these sides if blocks lie at random. block_rows and block_columns are
/// the matrix's.
inline Regions regions_of(const Size& size, std::int64_t block_rows, std::int64_t block_columns,
                          int row_boxes, int column_boxes) {
  const std::int64_t rows = row_boxes * kBoxSide / size.block_rows,
                     columns = column_boxes * kBoxSide / size.block_columns;
  Regions regions{
      grid_of({size.block_rows, size.block_columns}, block_rows, block_columns, row_boxes, column_boxes), 0,
      0};
  if (regions.row_boxes == 0) return {};
  // Estimate the strips (or units) of a region, and from their spread how many items a region takes.
  const double density = static_cast<double>(size.blocks) /
                         (static_cast<double>(block_rows) * static_cast<double>(block_columns));
  const double length = static_cast<double>(columns) * density;  // blocks of a block row inside the region
  const bool units = size.block_rows == 16;                      // an item holds four units per strip
  const double per_block = size.block_columns / 64.0;            // strips
  // The last strip of a block row is on average half empty, unless the block row is empty.
  const double strip_mean =
      units ? length * per_block * 4
            : length * per_block + (1 - per_block) / 2 * (1 - std::exp(-length / per_block / 2));
  const double strips = static_cast<double>(rows) * strip_mean;
  const double spread =
      units ? per_block * 4 * std::sqrt(static_cast<double>(rows) * length * (1 - density))
            : std::sqrt(static_cast<double>(rows) * (length * (1 - density) * per_block * per_block + 0.06));
  const double room = region_strips(size.block_rows) * (units ? 4 : 1);
  const double over = 0.5 * std::erfc((room - strips) / spread / std::sqrt(2.0));
  const double passes = std::max(1.0, std::ceil(strips / room)) + (strips < room ? over : 0);
  const auto items =
      static_cast<std::int32_t>(static_cast<double>(regions.down * regions.across) * passes + 0.999);
  const Cut cut = cut_items(items, size.grid, size.steps);

  // Clocks per step: the slowest of L2, the port of a multiprocessor, and the products.
  const auto step = [&](double busy) {
    const double bytes = static_cast<double>(size.step.column_bytes) * kBoxSide * (row_boxes + column_boxes);
    const double most = std::min(room, strips / std::ceil(strips / room) + 2 * spread);
    // ldmatrix and wgmma share the port of shared memory: 24 clocks for 32 rows of 16 tokens. A unit is
    // latency-bound (ldmatrix and mma.sync eight times, beside one other warp): 38 to 41 clocks on an H200 at
    // densities .1 and .2.
    const double multiply = units ? 41 * most : 1.3 * most * 4 * 24;
    return std::max({bytes * busy / kL2Bytes, bytes / kPortBytes, multiply});
  };
  // The full waves, then the rest: its pieces, their exchange of partial sums, and the tails.
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
  // An H200 measured 1.5 times as long with blocks of 32 (the log has the figures).
  if (!units) regions.clocks *= 1.5;
  // Add the time to count the blocks of all regions, and to find the strips of each item.
  regions.clocks += 8000 + 5000 * std::ceil(static_cast<double>(items) / size.grid);
  return regions;
}

/// Chooses the sides predicted to be fastest. `narrow` allows at most four boxes a side.
inline Regions choose_regions(const Size& size, std::int64_t block_rows, std::int64_t block_columns,
                              bool narrow = false) {
  constexpr struct {
    int rows, columns;
  } kSides[] = {{8, 12}, {8, 10}, {8, 8}, {7, 8}, {7, 7}, {6, 7},
                {6, 6},  {6, 4},  {4, 6}, {4, 4}, {2, 2}, {1, 1}};
  const int most = size.block_rows == 16
                       ? 12
                       : 6;  // with 16, a lane finds each block row's units: at most 8 boxes of rows
  Regions best;
  for (const auto& side : kSides) {
    if (std::max(side.rows, side.columns) > most) continue;
    if (narrow && std::max(side.rows, side.columns) > 4) continue;
    const Regions next = regions_of(size, block_rows, block_columns, side.rows, side.columns);
    if (next.row_boxes > 0 && (best.row_boxes == 0 || next.clocks < best.clocks)) best = next;
  }
  return best;
}

/// The choice between block rows, for block sides of 32 and more, and regions, for 16-bit blocks with sides
/// of 16 and 32: whichever is predicted to be faster. If neither is possible, most_blocks and row_boxes are
/// 0.
struct Way {
  bool by_regions = false;
  Deal deal{0, 0, 0};
  Regions regions;

  double rounds() const { return by_regions ? regions.rounds : deal.rounds; }
  double clocks() const { return by_regions ? regions.clocks : deal.clocks; }
  bool exists() const { return by_regions ? regions.row_boxes > 0 : deal.most_blocks > 0; }
};

/// `narrow` chooses smaller items or regions than usual; it is a candidate kernel of its own.
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

/// Bytes of workspace: a slot for each thread block, and a flag of 8 bytes for each of its eight consumer
/// warps.
inline std::size_t workspace_bytes(const Size& size, const Way& way) {
  if (!way.exists()) return 0;
  const std::size_t part = way.by_regions ? region_part_bytes(size) : part_bytes(size, way.deal.most_blocks);
  return part == 0 ? 0 : static_cast<std::size_t>(size.grid) * (part + 8 * 8);
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
