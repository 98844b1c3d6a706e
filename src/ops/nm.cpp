// Copies of n:m and n:m:g weights, the choice of their elements, and the indices that a thread has validated.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "layout/nmg.h"
#include "layout/word.h"
#include "ops/checks.h"
#include "plan/seen_indices.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/nm_ops.h"

namespace sparseloom {
namespace {

void require_dense(const char* op, const ConstMatrixView& dense, std::int64_t rows, std::int64_t cols,
                   const Executor& executor) {
  if (executor.device >= 0)
    core::fail(op, "a weight on the CPU", "one on " + ops::place(executor.device),
               "move it with .cpu(), and the result back");
  if (dense.rows != rows || dense.cols != cols)
    core::fail(op, "a matrix of " + core::shape(rows, cols), core::shape(dense.rows, dense.cols),
               "pass a matrix of the weight's shape");
  ops::require_matrix(op, dense);
}

/// A pattern for an output, with the magnitude that it keeps. A heap yields the best offer first.
struct Offer {
  double sum;
  std::int32_t row, pattern;
  bool operator<(const Offer& other) const noexcept {
    return sum != other.sum ? sum < other.sum : row > other.row;
  }
};

/// The best pattern for an output of the chunk among those with fewer than g outputs; the first of equals.
Offer best_offer(const ConstMatrixView& dense, const NmgView& shape, std::int64_t chunk, std::int64_t strip,
                 std::int64_t r, const std::int16_t* used) {
  const std::int64_t row = chunk * shape.chunk_rows() + r;
  double magnitude[256];
  for (std::int64_t i = 0; i < shape.m; ++i) {
    const std::int64_t col = strip * shape.m + i;
    const bool inside = row < shape.rows && col < shape.cols;
    const double x = inside ? kernels::load(dense.dtype, dense.data, row * dense.stride + col) : 0;
    magnitude[i] = std::isnan(x) ? std::numeric_limits<double>::infinity() : std::fabs(x);
  }
  Offer best{-1, static_cast<std::int32_t>(r), 0};
  const std::uint8_t* place = shape.places;
  for (std::int64_t p = 0; p < shape.patterns; ++p, place += shape.n) {
    if (used[p] == shape.g) continue;
    double sum = 0;
    for (std::int64_t i = 0; i < shape.n; ++i) sum += magnitude[place[i]];
    if (sum > best.sum) best.sum = sum, best.pattern = static_cast<std::int32_t>(p);
  }
  return best;
}

/// Fills the order of one chunk and strip. Sorting all pairs would select the same ones, but needs C(m, n)^2
/// g entries: 2.6 GB at 8:16. Here each output offers its best pattern that has room, and offers again if
/// that is full when its turn comes.
void order_strip(const ConstMatrixView& dense, const NmgView& shape, std::int64_t chunk, std::int64_t strip,
                 Offer* offers, std::int16_t* used, std::int16_t* order) {
  std::fill_n(used, shape.patterns, std::int16_t{0});
  Offer* end = offers;
  for (std::int64_t r = 0; r < shape.chunk_rows(); ++r)
    *end++ = best_offer(dense, shape, chunk, strip, r, used);
  std::make_heap(offers, end);
  while (end != offers) {
    std::pop_heap(offers, end);
    const Offer offer = end[-1];
    if (used[offer.pattern] < shape.g) {
      order[offer.pattern * shape.g + used[offer.pattern]++] = static_cast<std::int16_t>(offer.row);
      --end;
    } else {
      end[-1] = best_offer(dense, shape, chunk, strip, offer.row, used);
      std::push_heap(offers, end);
    }
  }
}

plan::SeenIndices& seen_here() {
  static thread_local plan::SeenIndices seen;
  return seen;
}

}  // namespace

void nm_require_valid(const char* op, const NmView& w) {
  Nm::validate(op, {0, w.cols, w.n, w.m, nullptr});  // the sizes give the number of groups
  if (w.positions == nullptr || !layout::countable(w.rows)) return Nm::validate(op, w);
  const plan::ListIndex<std::uint8_t> index{
      w.rows, w.cols, Nm::shape(w), {w.positions, static_cast<std::size_t>(Nm::stored(w))}};
  if (seen_here().contains(index)) return;
  Nm::validate(op, w);
  seen_here().add(index);
}

void nmg_require_valid(const char* op, const NmgView& w) {
  layout::nmg_require_made(op, w);
  const plan::ListIndex<std::int16_t> index{
      w.rows, w.cols, Nmg::shape(w), {w.order, static_cast<std::size_t>(Nmg::stored(w) / w.n)}};
  if (w.order != nullptr && seen_here().contains(index)) return;
  Nmg::validate(op, w);
  seen_here().add(index);
}

void nm_positions(const bool* mask, const NmView& shape, std::uint8_t* positions, const Executor& executor) {
  constexpr const char* op = "nm_positions";
  Nm::validate(op, {0, shape.cols, shape.n, shape.m, nullptr});
  require_dense(op, {mask, DType::i8, shape.rows, shape.cols, shape.cols}, shape.rows, shape.cols, executor);
  core::require_memory(op, {{"positions", positions, Nm::stored(shape) > 0}});
  const std::int64_t groups = shape.groups();
  std::mutex mutex;
  std::int64_t first = shape.rows * groups,
               found = 0;  // the lowest group with too many, whatever the threads
  runtime::parallel_for(executor, shape.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin * groups; group < end * groups; ++group) {
      const std::int64_t col = group % groups * shape.m, inside = std::min(shape.m, shape.cols - col);
      const bool* const from = mask + group / groups * shape.cols + col;
      const std::int64_t count = std::count(from, from + inside, true);
      if (count > shape.n) {
        std::lock_guard lock(mutex);
        if (group < first) first = group, found = count;
        return;
      }
      std::uint8_t* to = positions + group * shape.n;
      std::int64_t free = shape.n - count;  // the lowest free positions fill the group up
      for (std::int64_t i = 0; i < shape.m && to < positions + (group + 1) * shape.n; ++i)
        if ((i < inside && from[i]) || free-- > 0) *to++ = static_cast<std::uint8_t>(i);
    }
  });
  if (found > 0)
    core::fail(
        op, "at most " + std::to_string(shape.n) + " elements in each group of " + std::to_string(shape.m),
        std::to_string(found) + " in row " + std::to_string(first / groups) + ", group " +
            std::to_string(first % groups),
        "choose them with PerBlockNM(" + std::to_string(shape.n) + ", " + std::to_string(shape.m) + ")");
}

void nm_pack(const ConstMatrixView& dense, const NmView& w, void* values, const Executor& executor) {
  nm_require_valid("nm_pack", w);
  require_dense("nm_pack", dense, w.rows, w.cols, executor);
  core::require_memory("nm_pack", {{"values", values, Nm::stored(w) > 0}});
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    W* const to = static_cast<W*>(values);
    runtime::parallel_for(executor, w.rows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t row_values = w.groups() * w.n;
      for (std::int64_t row = begin; row < end; ++row) {
        std::fill_n(to + row * row_values, row_values, W{0});
        const W* const from = static_cast<const W*>(dense.data) + row * dense.stride;
        Nm::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) { to[slot] = from[col]; });
      }
    });
  });
}

void nm_unpack(const NmView& w, const void* values, const MatrixView& dense, const Executor& executor) {
  nm_require_valid("nm_unpack", w);
  require_dense("nm_unpack", dense, w.rows, w.cols, executor);
  core::require_memory("nm_unpack", {{"values", values, Nm::stored(w) > 0}});
  runtime::parallel_for(executor, w.rows, [&](std::int64_t begin, std::int64_t end) {
    Nm::unpack(w, values, dense, begin, end);
  });
}

void nmg_order(const ConstMatrixView& dense, const NmgView& shape, std::int16_t* order,
               const Executor& executor, std::pmr::memory_resource* scratch) {
  constexpr const char* op = "nmg_order";
  layout::nmg_require_made(op, shape);
  core::require_memory(op, {{"order", order, Nmg::stored(shape) > 0}, {"scratch", scratch}});
  require_dense(op, dense, shape.rows, shape.cols, executor);
  if (is_scaled(dense.dtype))
    core::fail(op, "a weight of dtype f32, f16, bf16 or f64", name_of(dense.dtype),
               "choose before it is quantized");
  const std::int64_t chunk_rows = shape.chunk_rows(), units = shape.chunks() * shape.strips();
  const std::int64_t parts = std::clamp<std::int64_t>(units, 1, std::max(1, executor.num_threads));
  std::pmr::vector<Offer> offers(static_cast<std::size_t>(parts * chunk_rows), scratch);
  std::pmr::vector<std::int16_t> used(static_cast<std::size_t>(parts * shape.patterns), scratch);
  runtime::parallel_tasks(executor, parts, [&](std::int64_t part) {
    for (std::int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit)
      order_strip(dense, shape, unit / shape.strips(), unit % shape.strips(),
                  offers.data() + part * chunk_rows, used.data() + part * shape.patterns,
                  order + unit * chunk_rows);
  });
}

void nmg_pack(const ConstMatrixView& dense, const NmgView& w, void* values, const Executor& executor) {
  nmg_require_valid("nmg_pack", w);
  require_dense("nmg_pack", dense, w.rows, w.cols, executor);
  core::require_memory("nmg_pack", {{"values", values, Nmg::stored(w) > 0}});
  runtime::parallel_for(executor, w.chunks() * w.strips(), [&](std::int64_t begin, std::int64_t end) {
    layout::nmg_pack_strips(dense, w, values, begin, end);
  });
}

void nmg_unpack(const NmgView& w, const void* values, const MatrixView& dense, const Executor& executor) {
  nmg_require_valid("nmg_unpack", w);
  require_dense("nmg_unpack", dense, w.rows, w.cols, executor);
  core::require_memory("nmg_unpack", {{"values", values, Nmg::stored(w) > 0}});
  // Split between chunks: each range walks the groups of the chunks that it touches.
  runtime::parallel_for(executor, w.chunks(), [&](std::int64_t begin, std::int64_t end) {
    Nmg::unpack(w, values, dense, begin * w.chunk_rows(), std::min(end * w.chunk_rows(), w.rows));
  });
}

}  // namespace sparseloom
