// The block rows of a block-sparse product that a kernel multiplies together, and their order. "Block row"
// here means a block row of W in forward and a block column of W in dx.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparseloom/schedule.h"

namespace sparseloom::plan {

/// The block rows as sorted lists of blocks: along[begin[i]] .. along[begin[i + 1] - 1] are the positions of
/// the blocks of block row i along the reduction, in 0 .. extent - 1.
struct BlockRows {
  std::span<const std::int32_t> begin;  // [block rows + 1], before folding
  std::span<const std::int32_t> along;
  std::int64_t extent = 0;
};

/// An order of the block rows (after folding) with three properties. Consecutive groups of groups.block_rows
/// share many units. The groups i, i + step, .. have nearly the same total cost for each i < step. Among
/// those, costly and cheap groups alternate, or the costliest come first if step is 1. Empty if the order of
/// the index is as good or must be kept, or if there are more than kMostOrderedBlockRows block rows. The time
/// grows with the square of their number; it is spent on the host, once per pattern.
///
/// The longest free block row begins each group, which then takes, one by one, the block row with the best
/// balance of shared and added units. If there are few groups of two, they exchange block rows afterwards.
/// (Grouping of like rows: Hong et al., "Adaptive Sparse Tiling for Sparse Matrix Multiplication", PPoPP
/// 2019.) On random patterns this saves 4 to 23 % of the units, and for pairs of block rows it comes within 3
/// % of the optimum (maximum weight matching). Rejected: exchanges between larger groups, which save little
/// more for much more time (measured; the log has the figures).
std::vector<std::uint16_t> block_row_order(const BlockRows& block_rows, BlockRowGroups groups);

/// The units that all groups of an order read; an empty order means the order of the index.
std::int64_t units_read(const BlockRows& block_rows, BlockRowGroups groups,
                        std::span<const std::uint16_t> order);

/// The order travels to the device among the arguments of a kernel, which bounds its size.
inline constexpr std::int64_t kMostOrderedBlockRows = 1024;

}  // namespace sparseloom::plan
