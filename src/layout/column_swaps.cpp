// Gains of swaps of columns between groups of four, and rounds of the best of them.
#include "layout/column_swaps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::layout {
namespace {

// Elements that a loop over rows adds in parallel, so that the compiler forms vectors of them.
constexpr std::int64_t kLanes = 8;
// Rows whose sums stay in float32; 16 columns of them fit in L1.
constexpr std::int64_t kChunk = 256;
// A swap is worthwhile from this gain on, relative to the largest magnitude; and from this fraction of the
// round's best gain on.
constexpr double kLeast = 1e-4, kOfBest = 1e-5;

float as_float(double x) { return static_cast<float>(x); }
float as_float(float x) { return x; }
float as_float(core::F16 x) { return core::to_f32(x); }
float as_float(core::Bf16 x) { return core::to_f32(x); }

float larger(float a, float b) noexcept { return a > b ? a : b; }
float smaller(float a, float b) noexcept { return a > b ? b : a; }

/// sums[j] += the sum of max(a, b_j) over a chunk of at most kChunk rows, for four columns b_j with a stride
/// of `stride`.
void add_maxima(const float* a, const float* b, std::int64_t stride, std::int64_t rows,
                double* sums) noexcept {
  std::array<std::array<float, kLanes>, 4> lanes{};
  for (std::int64_t r = 0; r < rows; r += kLanes)
    for (std::size_t j = 0; j < 4; ++j) {
      const float* const column = b + static_cast<std::int64_t>(j) * stride + r;
      for (std::size_t i = 0; i < kLanes; ++i)
        lanes[j][i] += larger(a[r + static_cast<std::int64_t>(i)], column[i]);
    }
  for (std::size_t j = 0; j < 4; ++j) {
    // halves are added pairwise: a chain of double additions would take as long as the rows
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) lanes[j][i] += lanes[j][i + half];
    sums[j] += static_cast<double>(lanes[j][0]);
  }
}

/// Writes the magnitudes of column `col` of w. Returns the largest; infinity if one is NaN or infinite.
template <class T>
float read(const ConstMatrixView& w, std::int64_t col, float* out) {
  const T* const data = static_cast<const T*>(w.data);
  float largest = 0;
  for (std::int64_t row = 0; row < w.rows; ++row) {
    out[row] = std::fabs(as_float(data[row * w.stride + col]));
    if (!(out[row] <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::infinity();
    largest = larger(largest, out[row]);
  }
  return largest;
}

float read_column(const ConstMatrixView& w, std::int64_t col, float* out) {
  switch (w.dtype) {
    case DType::f64: return read<double>(w, col, out);
    case DType::f16: return read<core::F16>(w, col, out);
    case DType::bf16: return read<core::Bf16>(w, col, out);
    default: return read<float>(w, col, out);
  }
}

}  // namespace

ColumnSwaps::ColumnSwaps(const ConstMatrixView& w)
    : groups_(w.cols / 4),
      rows_(core::round_up(w.rows, kLanes)),
      data_(static_cast<std::size_t>(8 * groups_ * rows_)),
      first_(static_cast<std::size_t>(4 * groups_)),
      kept_(static_cast<std::size_t>(groups_)),
      changed_(static_cast<std::size_t>(groups_), 1),
      best_(static_cast<std::size_t>(groups_ * (groups_ - 1) / 2)),
      order_(static_cast<std::size_t>(w.cols)) {
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  for (std::int64_t col = 0; col < 4 * groups_; ++col) {
    const float largest = read_column(w, col, column(col / 4, static_cast<int>(col % 4)));
    finite_ = finite_ && std::isfinite(largest);
    largest_ = larger(largest_, largest);
  }
}

float* ColumnSwaps::column(std::int64_t group, int i) noexcept {
  return data_.data() + (8 * group + i) * rows_;
}
float* ColumnSwaps::second(std::int64_t group, int i) noexcept { return column(group, 4 + i); }

ColumnSwaps::Swap& ColumnSwaps::pair(std::int64_t s, std::int64_t t) noexcept {
  return best_[static_cast<std::size_t>(t * (t - 1) / 2 + s)];
}

void ColumnSwaps::refresh(std::int64_t group) {
  if (!changed_[static_cast<std::size_t>(group)]) return;
  double sum = 0;
  for (int i = 0; i < 4; ++i) {
    const float *a = column(group, (i + 1) % 4), *b = column(group, (i + 2) % 4),
                *c = column(group, (i + 3) % 4), *own = column(group, i);
    float* const out = second(group, i);
    double first = 0;
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float high = larger(a[r], b[r]), low = smaller(a[r], b[r]);
      const float h1 = larger(high, c[r]), h2 = larger(low, smaller(high, c[r]));
      out[r] = h2;
      first += static_cast<double>(h1);
      if (i == 0) sum += static_cast<double>(h1 + larger(h2, own[r]));
    }
    first_[static_cast<std::size_t>(4 * group + i)] = first;
  }
  kept_[static_cast<std::size_t>(group)] = sum;
}

ColumnSwaps::Swap ColumnSwaps::best_of(std::int64_t s, std::int64_t t) const noexcept {
  // here: the amount that this group keeps in its second largest elements if column j of the other one
  // replaces column i, at 4 i + j; there: the same for the other group
  std::array<double, 16> there{}, here{};
  const float* const mine = data_.data() + 8 * s * rows_;
  const float* const theirs = data_.data() + 8 * t * rows_;
  for (std::int64_t begin = 0; begin < rows_; begin += kChunk) {
    const std::int64_t rows = std::min(kChunk, rows_ - begin);
    for (std::int64_t i = 0; i < 4; ++i) {
      const std::int64_t second = (4 + i) * rows_ + begin;
      add_maxima(mine + second, theirs + begin, rows_, rows, here.data() + 4 * i);
      add_maxima(theirs + second, mine + begin, rows_, rows, there.data() + 4 * i);
    }
  }
  const auto at = [](const std::vector<double>& of, std::int64_t i) {
    return of[static_cast<std::size_t>(i)];
  };
  const double before = at(kept_, s) + at(kept_, t);
  Swap best;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const double gain = here[static_cast<std::size_t>(4 * i + j)] +
                          there[static_cast<std::size_t>(4 * j + i)] + at(first_, 4 * s + i) +
                          at(first_, 4 * t + j) - before;
      if (gain > best.gain) best = {gain, static_cast<std::int8_t>(i), static_cast<std::int8_t>(j)};
    }
  return best;
}

void ColumnSwaps::score(std::int64_t group) {
  const bool mine = changed_[static_cast<std::size_t>(group)] != 0;
  for (std::int64_t t = group + 1; t < groups_; ++t)
    if (mine || changed_[static_cast<std::size_t>(t)]) pair(group, t) = best_of(group, t);
}

bool ColumnSwaps::swap() {
  std::fill(changed_.begin(), changed_.end(), char{0});
  double best = 0;
  for (const Swap& each : best_) best = std::max(best, each.gain);
  const double unit = static_cast<double>(largest_);
  const double least = std::min(std::max(best * kOfBest, kLeast * unit), unit);
  if (!(best >= least) || best <= 0) return false;

  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::int64_t t = 1; t < groups_; ++t)
    for (std::int64_t s = 0; s < t; ++s)
      if (pair(s, t).gain >= least) pairs.emplace_back(s, t);
  // The best swap of a pair of groups suffices: when it is refused, one of both groups has changed.
  std::stable_sort(pairs.begin(), pairs.end(), [this](const auto& a, const auto& b) {
    return pair(a.first, a.second).gain > pair(b.first, b.second).gain;
  });
  for (const auto& [s, t] : pairs) {
    char &first_changed = changed_[static_cast<std::size_t>(s)],
         &second_changed = changed_[static_cast<std::size_t>(t)];
    if (first_changed || second_changed) continue;
    const Swap chosen = pair(s, t);
    float* const column_of_first = column(s, chosen.here);
    std::swap_ranges(column_of_first, column_of_first + rows_, column(t, chosen.there));
    std::swap(order_[static_cast<std::size_t>(4 * s + chosen.here)],
              order_[static_cast<std::size_t>(4 * t + chosen.there)]);
    first_changed = second_changed = 1;
  }
  return true;
}

double ColumnSwaps::kept() const noexcept { return std::accumulate(kept_.begin(), kept_.end(), 0.0); }

}  // namespace sparseloom::layout
