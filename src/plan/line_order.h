// Which lines of a block-sparse product are multiplied together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sparseloom::plan {

/// How a kernel reads the dense operand: for `lines` lines (block rows of W in forward, block columns in dx)
/// at a time, in units of `span` blocks along the reduction, each of which is read where any of the lines
/// stores a block.
struct LineGroups {
  int lines = 1, span = 1;  // lines 0: their order must not change
  int step = 1;  // groups i, i + step, .. are multiplied one after the other, for each i < step side by side
  int fold = 1;  // consecutive lines that are one line of the kernel and of the order
  friend auto operator<=>(const LineGroups&, const LineGroups&) = default;
};

/// Of lines that a kernel takes together: the most that some of them may have, as a multiple of the mean.
struct Evenness {
  int lines = 1;
  double most = 1.5;
};

/// The lines as sorted lists of blocks: along[begin[i]] .. along[begin[i + 1] - 1] of line i, in 0 .. extent
/// - 1.
struct Lines {
  std::span<const std::int32_t> begin;  // [lines + 1], before they are folded
  std::span<const std::int32_t> along;
  std::int64_t extent = 0;
};

/// An order of the lines in which consecutive groups of groups.lines share many units, and every step-th
/// group add up to much the same; of these, costly and cheap ones alternate, and for a step of 1 the
/// costliest are first. Empty: as they lie is as good or demanded, or there are more than kMostOrderedLines
/// of them. 60 us for 128 lines of 128 units, 700 us for 512 of 128.
///
/// Each group is begun by the longest free line and takes, one by one, the line that shares most with it for
/// what it adds; few groups of two exchange lines afterwards. (Grouping of like rows: Hong et al., "Adaptive
/// Sparse Tiling for Sparse Matrix Multiplication", PPoPP 2019.) Of random patterns it saves 4 to 23 % of the
/// units, and of pairs of lines it comes within 3 % of the best there are (maximum weight matching).
/// Rejected: exchanges between larger groups, 1 % more for ten times the time.
std::vector<std::uint16_t> line_order(const Lines& lines, LineGroups groups);

/// Units read for all groups of an order; for an empty one, of the lines as they lie.
std::int64_t units_read(const Lines& lines, LineGroups groups, std::span<const std::uint16_t> order);

inline constexpr std::int64_t kMostOrderedLines =
    1024;  // an order travels to the device among a kernel's arguments

}  // namespace sparseloom::plan
