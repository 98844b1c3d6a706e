// Host side: chooses the most blocks of a work item of sm90_wgmma_dw and predicts the product's time, for the
// row; and reads the choice back from a schedule. The row lengths are on the device, so all rows are assumed
// to have the same length within one block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/cut.h"
#include "sparseloom/layout.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

constexpr int kStripColumns = 64;
constexpr int kRingBytes = 216 * 1024;  // shared memory for the stages

/// The shape of one step along the tokens of an item; it depends on the operands' type.
struct StepShape {
  int tokens;
  int column_bytes;  // bytes per column of X or dY
  int products;      // wgmmas per strip
  int room;          // most strips x rows of a block whose sums fit the registers of two warpgroups
  double busy;       // clocks of a wgmma, relative to a 16-bit one under load
  bool tokens_as_rows;

  constexpr bool is_16_bit() const { return tokens == 64; }
};

/// Steps of 16-bit operands, and of fp32 rounded to TF32, whose tokens lie along a row.
inline constexpr StepShape kStep16{64, 128, 4, 512, 1, true}, kStepTf32{32, 128, 4, 512, 1.06, false};
/// Steps of fp32 as three planes of bf16, whose sums are kept twice. `busy` was fitted to an H200, blocks of
/// 64 and 128.
inline constexpr StepShape kStepBf16x3{32, 192, 12, 256, 0.92, true};

/// The most strips of an item: its sums must fit the registers, and two of its stages must fit shared memory.
constexpr int most_strips(const StepShape& step, int block_rows) {
  return std::min(step.room / block_rows, (kRingBytes / 2 / step.column_bytes - block_rows) / kStripColumns);
}

constexpr int strips_of(int blocks, int block_columns) {
  return (blocks * block_columns + kStripColumns - 1) / kStripColumns;
}

/// Chunks (16 sums per thread) of a warpgroup, which has every other strip.
constexpr int chunks_of(int block_rows, int strips) { return (strips + 1) / 2 * (block_rows / 32); }

/// The sizes of a product that the host knows.
struct Size {
  StepShape step;
  int block_rows, block_columns;  // the sides of a block
  std::int64_t rows;              // upper bound of the non-empty block rows
  std::int64_t blocks;
  std::int32_t steps, grid;
};

struct Deal {
  int most_blocks;  // most blocks of an item
  double rounds;    // how often the tokens are read
  double clocks;    // from the first product to the last store
};

// Bytes per clock (at 1.98 GHz) that one multiprocessor (kPortBytes, kNarrowPortBytes) and all of them
// together (kL2Bytes) read from L2. Measured on an H200 with dW of 8192 x 4096 x 4096, where every
// multiprocessor had an item at each step. Rows of 64 bytes (narrow) cost TMA as much as rows of 128.
constexpr double kPortBytes = 60, kNarrowPortBytes = 31, kL2Bytes = 5350;
// The cost to a helper of each of its segments, beside its steps. It was fitted before segments followed one
// another without a pause; its choices still measured faster (the log has the figures). It applies to 16-bit
// operands only: TF32, whose steps take longer for their bytes, measured slower with items chosen that way.
constexpr double kHelperSegmentClocks = 3000;
// The factor by which wgmmas take longer under load, when the tensor cores' clock gives way.
constexpr double kUnderLoad = 1.41;

/// Clocks per step when `busy` thread blocks have items of `mean_blocks` on average, and at most
/// `most_blocks`.
inline double step_clocks(const Size& size, double mean_blocks, double most_blocks, double busy) {
  const auto bytes = [&](double blocks) {
    return size.step.column_bytes * (blocks * size.block_columns + size.block_rows);
  };
  const bool narrow_rows = size.block_columns == 32 && size.step.tokens_as_rows;
  const double port = narrow_rows ? kNarrowPortBytes : kPortBytes;
  const double read = std::max(bytes(mean_blocks) * busy / kL2Bytes, bytes(most_blocks) / port);
  const double strip =
      kUnderLoad * size.step.busy * size.step.products * (size.block_rows == 32 ? 24 : size.block_rows / 2);
  const int strips = strips_of(static_cast<int>(most_blocks), size.block_columns);
  // A warpgroup's products, plus 450 clocks of latency between barriers, hidden only by the other warpgroup.
  return std::max({read, strips * strip, (strips + 1) / 2 * strip + 450});
}

/// Predicts the product with items of at most `most` blocks.
inline Deal deal_with(const Size& size, int most) {
  const std::int64_t least = size.blocks / size.rows, longer = size.blocks % size.rows;
  const auto items_of = [&](std::int64_t length) { return (length + most - 1) / most; };
  const std::int64_t items = longer * items_of(least + 1) + (size.rows - longer) * items_of(least);
  const auto largest_of = [&](std::int64_t length) {
    return length == 0 ? 0 : (length + items_of(length) - 1) / items_of(length);
  };
  const double largest =
      static_cast<double>(std::max(largest_of(least), longer > 0 ? largest_of(least + 1) : 0));
  const double mean = static_cast<double>(size.blocks) / static_cast<double>(items), grid = size.grid;
  const std::int64_t in_rounds = std::min<std::int64_t>(items, std::int64_t{1} << 30);
  const Cut cut = cut_items(static_cast<std::int32_t>(in_rounds), size.grid, size.steps);

  // The full waves, then the rest: its pieces, their exchange of partial sums, and the tails.
  const double whole = static_cast<double>(cut.whole / size.grid);
  double rounds = whole, clocks = whole * size.steps * step_clocks(size, mean, largest, grid);
  if (cut.rest > 0) {
    const std::int32_t length = (size.steps - cut.tail + cut.pieces - 1) / cut.pieces;
    const double busy = static_cast<double>(cut.rest) * cut.pieces + cut.helpers;
    const double part = largest * size.block_rows * size.block_columns * 4 / kPortBytes + 1000;
    rounds += static_cast<double>(cut.rest) / grid;
    double tails = 0;
    if (cut.tail > 0) {
      const double segments_of_helper = 1 + static_cast<double>(cut.rest) / cut.helpers;
      tails = part + (size.step.is_16_bit() ? kHelperSegmentClocks * segments_of_helper : part);
    }
    clocks += length * step_clocks(size, mean, largest, busy) + (cut.pieces - 1) * part + tails;
  }
  return {most, rounds, clocks};
}

/// Chooses the fewest items that hold a row, or one, two or three more where that fills the GPU better.
/// `narrow` halves the strips of an item. most_blocks is 0 if such items would hold no block.
inline Deal deal(const Size& size, bool narrow = false) {
  const int room =
      most_strips(size.step, size.block_rows) / (narrow ? 2 : 1) * kStripColumns / size.block_columns;
  if (room == 0) return {0, 0, 0};
  const std::int64_t length = (size.blocks + size.rows - 1) / size.rows, fewest = (length + room - 1) / room;
  Deal best{};
  for (std::int64_t shares = fewest; shares < fewest + 4 && shares <= length; ++shares) {
    const Deal next = deal_with(size, static_cast<int>((length + shares - 1) / shares));
    if (best.most_blocks == 0 || next.clocks < best.clocks) best = next;
  }
  return best;
}

/// The most blocks of an item that a schedule names; 0: it names no instance.
inline int most_blocks_of(const Schedule& schedule, const StepShape& step, const BlockShape& block) {
  const int most = schedule.tile_n / block.cols;
  const bool named = schedule.method == Method::dw_wgmma && schedule.tile_m == block.rows &&
                     schedule.tile_k == step.tokens && most > 0 && schedule.tile_n % block.cols == 0 &&
                     strips_of(most, block.cols) <= most_strips(step, block.rows);
  return named ? most : 0;
}

/// Bytes of workspace for the sums of one segment; 0 if no item can be cut.
inline std::size_t part_bytes(const Size& size, int most_blocks) {
  if (size.steps < 2 * kFewestSteps) return 0;
  return std::size_t{2} *
         static_cast<std::size_t>(chunks_of(size.block_rows, strips_of(most_blocks, size.block_columns))) *
         16 * 128 * 4;
}

inline Size size_of_product(const StepShape& step, const BlockShape& block, std::int64_t block_rows,
                            std::int64_t blocks, std::int64_t m, int multiprocessors) {
  return {step,
          block.rows,
          block.cols,
          std::min(block_rows, blocks),
          blocks,
          static_cast<std::int32_t>((m + step.tokens - 1) / step.tokens),
          std::max(1, multiprocessors)};
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
