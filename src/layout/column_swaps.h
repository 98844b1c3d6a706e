// ColumnSwaps: the operations by which src/ops searches for an order of a weight's columns. It uses no
// threads.
//
// A group of four columns keeps two elements of each row. Let h1 >= h2 be the two largest of the three
// columns that stay when column a leaves its group. With column c instead the group keeps h1 + max(h2, c) of
// that row, so the gain of a swap is a sum of maxima over the rows, of vectors that are computed once per
// column.
#pragma once

#include <cstdint>
#include <vector>

#include "sparseloom/matrix_view.h"

namespace sparseloom::layout {

class ColumnSwaps {
 public:
  /// Reads the magnitudes of w, whose dtype is not an 8-bit one; columns of a last group of fewer than four
  /// are omitted.
  explicit ColumnSwaps(const ConstMatrixView& w);

  std::int64_t groups() const noexcept { return groups_; }
  /// Whether all magnitudes are finite.
  bool finite() const noexcept { return finite_; }
  /// The column of w at each position.
  const std::vector<std::int64_t>& order() const noexcept { return order_; }

  /// Recomputes the vectors of a group. Groups that a round of swaps changed need it, and all at first;
  /// different groups may go to different threads.
  void refresh(std::int64_t group);
  /// Finds the best swap of the group with each later one, if one of both has changed. All groups must be
  /// fresh. Different groups may go to different threads.
  void score(std::int64_t group);
  /// Does one round of swaps, the best first, each group at most once. Returns whether there was one.
  bool swap();
  /// The amount that all groups keep; they must be fresh.
  double kept() const noexcept;

 private:
  struct Swap {
    double gain = 0;
    std::int8_t here = 0, there = 0;  // columns of the two groups, 0 to 3
  };
  float* column(std::int64_t group, int i) noexcept;
  float* second(std::int64_t group, int i) noexcept;
  Swap best_of(std::int64_t s, std::int64_t t) const noexcept;
  Swap& pair(std::int64_t s, std::int64_t t) noexcept;

  std::int64_t groups_, rows_;  // rows rounded up to whole vectors; the additional ones are zero
  bool finite_ = true;
  float largest_ = 0;
  std::vector<float> data_;    // per group: its four columns, then h2 for each of them
  std::vector<double> first_;  // the sum of h1 per column
  std::vector<double> kept_;   // amount kept per group
  std::vector<char> changed_;  // groups whose swaps must be scored again
  std::vector<Swap> best_;     // best swap of each pair of groups s < t
  std::vector<std::int64_t> order_;
};

}  // namespace sparseloom::layout
