// column_sweep of one row on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sparseloom/one_shot.h"
#include "sparsifiers/sweep_grid.h"

namespace sparseloom::sparsifiers {

/// Marks the n of `size` elements whose removal costs most; of equal costs the first.
inline void keep_costly(const float* w, const float* factor, std::int64_t factor_stride, std::int64_t size,
                        std::int64_t n, bool* keep) {
  float cost[kSweepGroup];
  for (std::int64_t i = 0; i < size; ++i) {
    const float error = w[i] / factor[i * factor_stride + i];
    cost[i] = error * error;
  }
  for (std::int64_t i = 0; i < size; ++i) {
    std::int64_t before = 0;
    for (std::int64_t other = 0; other < size; ++other)
      before += cost[other] > cost[i] || (cost[other] == cost[i] && other < i);
    keep[i] = before < n;
  }
}

inline void sweep_row(const ColumnSweep& sweep, std::int64_t row) {
  float* const w = sweep.weights + row * sweep.stride;
  bool* const keep = sweep.mask + row * sweep.cols;
  float* const errors = sweep.errors + row * sweep.cols;
  const bool rounds = sweep.grid != SweepGrid::none;
  const RowGrid grid(sweep.grid, rounds ? sweep.tops[row] : 0);
  for (std::int64_t j = 0; j < sweep.cols; ++j) {
    const float* const u = sweep.factor + j * sweep.factor_stride;
    if (sweep.m > 0 && j % sweep.m == 0)
      keep_costly(w + j, u + j, sweep.factor_stride, std::min(sweep.m, sweep.cols - j), sweep.n, keep + j);
    errors[j] = 0;
    if (keep[j] && !rounds) continue;
    const float value = keep[j] ? grid.nearest(w[j], sweep.pins[row] == j) : 0;
    const float error = (w[j] - value) / u[j];
    errors[j] = error, w[j] = value;
    for (std::int64_t k = j + 1; k < sweep.cols; ++k) w[k] -= error * u[k];
  }
}

}  // namespace sparseloom::sparsifiers
