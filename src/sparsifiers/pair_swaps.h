// swap_pairs of one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sparseloom/one_shot.h"

namespace sparseloom::sparsifiers {

/// One row with the costs of its elements. With r the removed part of w and c = H r, removing the kept w_i
/// adds 2 w_i c_i + w_i^2 H_ii to r H r^T, keeping the removed w_j adds -2 w_j c_j + w_j^2 H_jj, and doing
/// both adds -2 w_i w_j H_ij more.
class SwappedRow {
 public:
  explicit SwappedRow(const PairSwaps& swaps) : swaps_(swaps), c_(static_cast<std::size_t>(swaps.cols)) {}

  /// Improves a row. Returns the number of swaps.
  std::int64_t improve(std::int64_t row) {
    w_ = swaps_.weights + row * swaps_.cols, keep_ = swaps_.mask + row * swaps_.cols;
    std::fill(c_.begin(), c_.end(), 0.0);
    double error = 0;
    for (std::int64_t j = 0; j < swaps_.cols; ++j)
      if (!keep_[j]) add(j, w_[j]);
    for (std::int64_t j = 0; j < swaps_.cols; ++j)
      if (!keep_[j]) error += w_[j] * at(j);
    least_ = -1e-9 * error;  // smaller gains are rounding, and could alternate for ever
    std::int64_t done = 0;
    while (done < swaps_.most && (swaps_.m > 0 ? in_groups(done) : in_row())) ++done;
    return done;
  }

 private:
  struct Pair {
    std::int64_t kept = -1, removed = -1;
    double change = 0;
  };

  double& at(std::int64_t j) { return c_[static_cast<std::size_t>(j)]; }
  const float* gram(std::int64_t j) const { return swaps_.gram + j * swaps_.cols; }
  void add(std::int64_t j, double weight) {
    const float* const h = gram(j);
    if (weight == 0) return;
    for (std::int64_t k = 0; k < swaps_.cols; ++k) at(k) += weight * h[k];
  }
  double cost(std::int64_t j) {  // of removing a kept element, or of keeping a removed one
    const double w = w_[j];
    return (keep_[j] ? 2 : -2) * w * at(j) + w * w * gram(j)[j];
  }
  double change(std::int64_t kept, std::int64_t removed) {
    return cost(kept) + cost(removed) - 2.0 * w_[kept] * w_[removed] * gram(kept)[removed];
  }

  /// The best swap of all pairs of elements in [begin, end).
  Pair best(std::int64_t begin, std::int64_t end) {
    Pair found{-1, -1, least_};
    for (std::int64_t i = begin; i < end; ++i) {
      if (!keep_[i]) continue;
      for (std::int64_t j = begin; j < end; ++j)
        if (const double by = keep_[j] ? 0 : change(i, j); by < found.change) found = {i, j, by};
    }
    return found;
  }

  /// The best swap with the cheapest element to remove or the cheapest one to keep, which two passes find.
  Pair likely() {
    std::int64_t kept = -1, removed = -1;
    double of_kept = std::numeric_limits<double>::infinity(), of_removed = of_kept;
    for (std::int64_t j = 0; j < swaps_.cols; ++j) {
      const double of = cost(j);
      if (keep_[j] && of < of_kept) kept = j, of_kept = of;
      if (!keep_[j] && of < of_removed) removed = j, of_removed = of;
    }
    Pair found{-1, -1, least_};
    if (kept < 0 || removed < 0) return found;
    for (std::int64_t j = 0; j < swaps_.cols; ++j) {
      const std::int64_t from = keep_[j] ? j : kept, to = keep_[j] ? removed : j;
      if (const double by = change(from, to); by < found.change) found = {from, to, by};
    }
    return found;
  }

  bool swap(const Pair& pair) {
    if (pair.kept < 0) return false;
    add(pair.kept, w_[pair.kept]), add(pair.removed, -static_cast<double>(w_[pair.removed]));
    keep_[pair.kept] = false, keep_[pair.removed] = true;
    return true;
  }

  bool in_row() { return swap(likely()) || swap(best_of_row()); }

  /// As best of the whole row, but it takes the first swap that helps: all pairs are many.
  Pair best_of_row() {
    for (std::int64_t i = 0; i < swaps_.cols; ++i) {
      if (!keep_[i]) continue;
      Pair found{-1, -1, least_};
      for (std::int64_t j = 0; j < swaps_.cols; ++j)
        if (const double by = keep_[j] ? 0 : change(i, j); by < found.change) found = {i, j, by};
      if (found.kept >= 0) return found;
    }
    return {};
  }

  /// Swaps in the next group, after that of the last swap, where one helps.
  bool in_groups(std::int64_t done) {
    const std::int64_t groups = (swaps_.cols + swaps_.m - 1) / swaps_.m;
    if (done == 0) group_ = 0;
    for (std::int64_t tried = 0; tried < groups; ++tried, group_ = (group_ + 1) % groups) {
      const std::int64_t begin = group_ * swaps_.m;
      if (swap(best(begin, std::min(begin + swaps_.m, swaps_.cols)))) return true;
    }
    return false;
  }

  const PairSwaps& swaps_;
  std::vector<double> c_;
  const float* w_ = nullptr;
  bool* keep_ = nullptr;
  double least_ = 0;
  std::int64_t group_ = 0;
};

}  // namespace sparseloom::sparsifiers
