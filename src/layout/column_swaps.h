// ColumnSwaps: what src/ops needs to search for an order of the columns of a weight. It knows of no threads.
//
// A group of four columns keeps two elements of each row. Let h1 >= h2 be the two largest of the three
// columns that stay when column a leaves its group. With column c in its place the group keeps
// h1 + max(h2, c) of that row, so the gain of a swap is a sum of maxima over the rows, of vectors that are
// formed once for each column.
#pragma once

#include <cstdint>
#include <vector>

#include "sparseloom/matrix_view.h"

namespace sparseloom::layout {

class ColumnSwaps {
 public:
  /// Reads the magnitudes of w, whose dtype is not an 8-bit one; columns of a last group of fewer than four
  /// are left out.
  explicit ColumnSwaps(const ConstMatrixView& w);

  std::int64_t groups() const noexcept { return groups_; }
  /// Whether all magnitudes are finite.
  bool finite() const noexcept { return finite_; }
  /// The column of w that lies at each place.
  const std::vector<std::int64_t>& order() const noexcept { return order_; }

  /// Forms the vectors of a group anew. Groups that a round of swaps changed need it, and all at first;
  /// different groups may be given to different threads.
  void refresh(std::int64_t group);
  /// Finds the best swap of the group with each later one, where one of both has changed. All groups have to
  /// be fresh. Different groups may be given to different threads.
  void score(std::int64_t group);
  /// Does one round of swaps, from the best on, each group at most once. Returns whether there was one.
  bool swap();
  /// What all groups keep; they have to be fresh.
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
  std::vector<float> data_;    // of each group its four columns, then h2 for each of them
  std::vector<double> first_;  // the sum of h1 for each column
  std::vector<double> kept_;   // of each group
  std::vector<char> changed_;  // groups whose swaps have to be scored anew
  std::vector<Swap> best_;     // of each pair of groups s < t
  std::vector<std::int64_t> order_;
};

}  // namespace sparseloom::layout
