// swap_pairs of one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sparseloom/one_shot.h"

namespace sparseloom::sparsifiers {

/// One row with the costs of its elements. With the error e = w - v and g = H e, removing the kept v_i adds
/// 2 v_i g_i + v_i^2 H_ii to e H e^T; keeping a removed element j at its best value, g_j / H_jj, then adds
/// -(g_j + v_i H_ij)^2 / H_jj.
class SwappedRow {
 public:
  explicit SwappedRow(const PairSwaps& swaps) : swaps_(swaps), g_(static_cast<std::size_t>(swaps.cols)) {}

  /// Improves a row. Returns the number of swaps.
  std::int64_t improve(std::int64_t row) {
    const float* const w = swaps_.weights + row * swaps_.cols;
    v_ = swaps_.values + row * swaps_.cols, keep_ = swaps_.mask + row * swaps_.cols;
    std::fill(g_.begin(), g_.end(), 0.0);
    for (std::int64_t j = 0; j < swaps_.cols; ++j) add(j, static_cast<double>(w[j]) - v_[j]);
    double error = 0;
    for (std::int64_t j = 0; j < swaps_.cols; ++j) error += (static_cast<double>(w[j]) - v_[j]) * at(j);
    if (!(error > 0)) return 0;  // none is lower; below it lies rounding, or a NaN
    least_ = -1e-7 * error;      // smaller gains are rounding, and could alternate for ever
    std::int64_t done = 0;
    while (done < swaps_.most && (swaps_.m > 0 ? in_groups(done) : in_row())) ++done;
    return done;
  }

 private:
  struct Pair {
    std::int64_t kept = -1, removed = -1;
    double change = 0;
  };

  double& at(std::int64_t j) { return g_[static_cast<std::size_t>(j)]; }
  const float* gram(std::int64_t j) const { return swaps_.gram + j * swaps_.cols; }
  void add(std::int64_t j, double error) {
    const float* const h = gram(j);
    if (error == 0) return;
    for (std::int64_t k = 0; k < swaps_.cols; ++k) at(k) += error * h[k];
  }
  double cost(std::int64_t kept) {
    const double v = v_[kept];
    return v * (2 * at(kept) + v * gram(kept)[kept]);
  }
  double gain(std::int64_t removed, double g) { return g * g / gram(removed)[removed]; }
  double change(std::int64_t kept, std::int64_t removed) {
    return cost(kept) - gain(removed, at(removed) + static_cast<double>(v_[kept]) * gram(kept)[removed]);
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
    double least = std::numeric_limits<double>::infinity(), most = -1;
    for (std::int64_t j = 0; j < swaps_.cols; ++j) {
      if (keep_[j] && cost(j) < least) kept = j, least = cost(j);
      if (!keep_[j] && gain(j, at(j)) > most) removed = j, most = gain(j, at(j));
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
    add(pair.kept, v_[pair.kept]);
    v_[pair.kept] = 0,
    v_[pair.removed] = static_cast<float>(at(pair.removed) / gram(pair.removed)[pair.removed]);
    add(pair.removed, -static_cast<double>(v_[pair.removed]));
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
  std::vector<double> g_;
  float* v_ = nullptr;
  bool* keep_ = nullptr;
  double least_ = 0;
  std::int64_t group_ = 0;
};

}  // namespace sparseloom::sparsifiers
