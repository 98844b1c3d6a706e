// Grouped n:m weights, n:m:g (STen, Ivanov et al. 2023, arXiv 2304.07613). W is cut into strips of m
// consecutive inputs and chunks of C(m, n) g consecutive outputs. Where they cross, every output stores n
// elements, and each of the C(m, n) patterns of n places in m is used by exactly g outputs of the chunk.
// Outputs lie in the order of their patterns, so that a kernel loads the inputs of a pattern once for g
// outputs. This is the layout; nm_ops.h chooses and packs, nmg_linear.h multiplies.
//
//   values  [chunks, strips, C(m, n) g, n], of the weight's dtype
//   order   int16, the same without the last dimension: the output of the chunk for each group of n values
//
// Patterns follow each other in revolving-door order (Nijenhuis & Wilf 1978): neighbours share all but one of
// their positions. A last chunk cut by rows and a last strip cut by cols are whole in memory; values outside
// of W are zero.
#pragma once

#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// C(m, n), and 0 from 2^15 on, where the outputs of a chunk would not fit the order's int16.
SPARSELOOM_API std::int64_t nmg_patterns(std::int64_t n, std::int64_t m) noexcept;

/// The order of an n:m:g matrix [rows, cols]; borrowed.
struct NmgView {
  std::int64_t rows = 0, cols = 0, n = 1, m = 1, g = 1;
  const std::int16_t* order = nullptr;  // [chunks(), strips(), chunk_rows()]
  // C(m, n), and the positions of each pattern, ascending: [patterns, n]. nmg_view sets both.
  std::int64_t patterns = 0;
  const std::uint8_t* places = nullptr;

  std::int64_t chunk_rows() const noexcept { return patterns * g; }
  std::int64_t chunks() const noexcept {
    return chunk_rows() > 0 ? (rows + chunk_rows() - 1) / chunk_rows() : 0;
  }
  std::int64_t strips() const noexcept { return m > 0 ? (cols + m - 1) / m : 0; }
};

/// A view whose table of patterns lives as long as the process. Throws Error in the name of `op` for negative
/// sizes, unless 1 <= n <= m <= 256 and g >= 1, and where C(m, n) g reaches 2^15.
SPARSELOOM_API NmgView nmg_view(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t n,
                                std::int64_t m, std::int64_t g, const std::int16_t* order = nullptr);

/// The layout (layout_concept.h). Slots: the values in their order.
struct Nmg {
  using View = NmgView;
  static constexpr const char* kId = "nmg";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept {
    return w.chunks() * w.strips() * w.chunk_rows() * w.n;
  }
  static bool has_memory(const View& w) noexcept {
    return w.places != nullptr && (w.order != nullptr || stored(w) == 0);
  }

  /// n, m and g, 16 bits each from the lowest on.
  static std::int64_t shape(const View& w) noexcept { return w.n | w.m << 16 | w.g << 32; }

  /// The search for an output in a strip takes half a chunk on average.
  static double visit_ns(std::int64_t shape) noexcept {
    const std::int64_t n = shape & 0xffff, m = shape >> 16 & 0xffff, g = shape >> 32;
    return 0.7 * static_cast<double>(nmg_patterns(n, m) * g) / static_cast<double>(2 * n);
  }

  /// Unpacking takes 1.1 to 1.9 ns a slot of 16 bits, of which writing W is counted already (Zen 5).
  static double unpack_ns(std::int64_t) noexcept { return 1; }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    const std::int64_t chunk_rows = w.chunk_rows(), strips = w.strips();
    const auto within = static_cast<std::int16_t>(row % chunk_rows);
    for (std::int64_t strip = 0; strip < strips; ++strip) {
      const std::int64_t first = (row / chunk_rows * strips + strip) * chunk_rows;
      std::int64_t at = 0;
      while (w.order[first + at] != within) ++at;
      for (std::int64_t i = 0; i < w.n; ++i)
        if (const std::int64_t col = strip * w.m + w.places[at / w.g * w.n + i]; col < w.cols)
          f(col, (first + at) * w.n + i);
    }
  }

  /// Unpacking some rows of a chunk reads the order of all of it.
  static std::int64_t rows_at_once(const View& w) noexcept { return w.chunk_rows(); }
  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);

  /// Throws Error on a view that nmg_view did not make, and naming the chunk and strip whose order is no
  /// permutation of the chunk's outputs.
  SPARSELOOM_API static void validate(const char* op, const View& w);
};

static_assert(Layout<Nmg>);

}  // namespace sparseloom
