// Tiles: a weight of square tiles, each dense, 2:4 or absent. This is the layout; tiles_linear.h multiplies.
//
//   side    64 or 128. W [rows, cols] lies on a grid of ceil(rows / side) x ceil(cols / side) tiles; behind
//   the
//           edge of W their values are zero.
//   values  of the weight's dtype: the dense tiles [dense, side, side], then of the 2:4 tiles the stored
//           elements [halves, side, side / 2], as semi24.h has those of a weight [halves * side, side]
//   positions  uint8 [halves * side, side / 8]: those of these tiles, as in semi24.h
//   table   int32 [groups, units, 4], groups = ceil(rows / 256), units = ceil(cols / side) * (side / 64): for
//           each 64 rows and 64 columns of W where its values are, or -1. Bit 0: 2:4; bit 1: of a tile of 128
//           the second 64 columns; the others: the 64 rows of [dense * side, side] or [halves * side, side].
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// The index of a weight of tiles; borrowed.
struct TilesView {
  static constexpr std::int64_t kGroup = 4, kGroupRows = 64 * kGroup;  // 64 rows each, of an entry of table

  std::int64_t rows = 0, cols = 0, side = 64, dense = 0, halves = 0;
  const std::int32_t* table = nullptr;
  const std::uint8_t* positions = nullptr;
  // The positions as ordered by tiles_order (tiles_ops.h), for kernels on CUDA devices.
  const std::byte* metadata = nullptr;

  /// 64 columns each.
  std::int64_t units() const noexcept { return (cols + side - 1) / side * (side / 64); }
  std::int64_t groups() const noexcept { return (rows + kGroupRows - 1) / kGroupRows; }
  std::int64_t dense_values() const noexcept { return dense * side * side; }

  /// The entry of table for 64 rows and the 64 columns of `unit`.
  std::int32_t entry(std::int64_t row, std::int64_t unit) const noexcept {
    return table[(row / kGroupRows * units() + unit) * kGroup + row % kGroupRows / 64];
  }
  static constexpr bool is_half(std::int32_t entry) noexcept { return (entry & 1) != 0; }
  /// Which 64 columns of the tile.
  static constexpr std::int32_t column_part(std::int32_t entry) noexcept { return entry >> 1 & 1; }
  /// The first row in the matrix of its kind.
  static constexpr std::int64_t first_row(std::int32_t entry) noexcept {
    return std::int64_t{entry >> 2} * 64;
  }
};

/// The layout (layout_concept.h). Slots: the values in their order. A stored zero is a stored element, and a
/// NaN in x under it reaches y; elements behind the edge of W are padding.
struct Tiles {
  using View = TilesView;
  static constexpr const char* kId = "tiles";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept {
    return w.dense_values() + w.halves * w.side * w.side / 2;
  }
  /// The numbers of 2:4 tiles and of 64 rows of a tile, for the rows' predictions.
  static std::int64_t shape(const View& w) noexcept { return w.halves * 2 + (w.side / 64 - 1); }
  static bool has_memory(const View& w) noexcept {
    return (w.table != nullptr || w.rows * w.cols == 0) && (w.positions != nullptr || w.halves == 0);
  }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    for (std::int64_t unit = 0; unit < w.units(); ++unit) {
      const std::int32_t entry = w.entry(row, unit);
      if (entry < 0) continue;
      const std::int64_t within = View::first_row(entry) + row % 64, part = View::column_part(entry) * 64;
      if (!View::is_half(entry)) {
        for (std::int64_t c = 0; c < 64 && unit * 64 + c < w.cols; ++c)
          f(unit * 64 + c, within * w.side + part + c);
        continue;
      }
      for (std::int64_t group = 0; group < 16; ++group) {
        const std::int64_t at = part / 4 + group, slot = w.dense_values() + within * (w.side / 2) + 2 * at;
        const unsigned bits = w.positions[within * (w.side / 8) + at / 2] >> (at % 2 * 4) & 15u;
        const std::int64_t first = unit * 64 + 4 * group + (bits & 3u),
                           second = unit * 64 + 4 * group + (bits >> 2);
        if (first < w.cols) f(first, slot);
        if (second < w.cols) f(second, slot + 1);
      }
    }
  }

  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);

  /// Throws Error naming the first entry of the table that is outside of the values or has been there before,
  /// how many are missing, and as Semi24::validate.
  SPARSELOOM_API static void validate(const char* op, const View& w);

  /// Writes the table of tiles of these kinds, uint8 [ceil(rows / side), ceil(cols / side)]: 0 absent, 1 2:4,
  /// 2 dense; the tiles of a kind lie in the order of the grid. `w`: its sizes. Throws Error for another kind
  /// and for numbers of tiles that are not those of `w`.
  SPARSELOOM_API static void fill_table(const char* op, const View& w, const std::uint8_t* kinds,
                                        std::int32_t* table);
};

static_assert(Layout<Tiles>);

}  // namespace sparseloom
