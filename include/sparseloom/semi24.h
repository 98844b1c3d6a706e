// 2:4 weights: of each group of four consecutive inputs of an output, two elements are stored. This is the
// layout; semi24_ops.h packs and prunes, semi24_linear.h multiplies.
//
// The format does not depend on hardware. Files store it; kernels that need the positions in another order
// make that order from it.
//
//   values     [rows, 2 groups], row-major, of the weight's dtype: of each group its two elements, in the
//              order of their positions. groups = ceil(cols / 4).
//   positions  uint8 [rows, ceil(groups / 2)]: 4 bits for each group, an even group in the low half of a
//              byte. Bits 0-1 are the position of the first element in the group, bits 2-3 that of the second
//              one, first < second. Behind an odd number of groups, the high half of a row's last byte is 0.
//
// A group with fewer than two nonzeros stores zeros at its lowest free positions. In a last group that cols
// cuts, they may lie beyond cols, and their values are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// The positions of a 2:4 matrix [rows, cols]; borrowed.
struct Semi24View {
  std::int64_t rows = 0, cols = 0;
  const std::uint8_t* positions = nullptr;  // [rows, position_bytes()]
  // The positions as ordered by semi24_order (semi24_ops.h), for kernels on CUDA devices, which need both.
  const std::byte* metadata = nullptr;

  std::int64_t groups() const noexcept { return (cols + 3) / 4; }
  std::int64_t row_values() const noexcept { return 2 * groups(); }
  std::int64_t position_bytes() const noexcept { return (groups() + 1) / 2; }
  /// The 4 bits of a group.
  unsigned group(std::int64_t row, std::int64_t group) const noexcept {
    return positions[row * position_bytes() + group / 2] >> (group % 2 * 4) & 15u;
  }
};

/// The layout (layout_concept.h). Slots: the values in their order. A stored zero is a stored element, and a
/// NaN in x under it reaches y; elements beyond cols are padding.
struct Semi24 {
  using View = Semi24View;
  static constexpr const char* kId = "semi24";

  static std::int64_t rows(const View& w) noexcept { return w.rows; }
  static std::int64_t cols(const View& w) noexcept { return w.cols; }
  static std::int64_t stored(const View& w) noexcept { return w.rows * w.row_values(); }
  static bool has_memory(const View& w) noexcept { return w.positions != nullptr || stored(w) == 0; }

  template <class F>
  static void for_each_in_row(const View& w, std::int64_t row, F&& f) {
    const std::int64_t slot = row * w.row_values(), groups = w.groups();
    for (std::int64_t g = 0; g < groups; ++g) {
      const unsigned bits = w.group(row, g);
      const std::int64_t first = 4 * g + (bits & 3u), second = 4 * g + (bits >> 2);
      if (first < w.cols) f(first, slot + 2 * g);
      if (second < w.cols) f(second, slot + 2 * g + 1);
    }
  }

  SPARSELOOM_API static void unpack(const View& w, const void* values, const MatrixView& dense,
                                    std::int64_t begin, std::int64_t end);

  /// Throws Error naming the row and group of the first pair of positions that does not ascend, or the row
  /// whose unused bits are not 0.
  SPARSELOOM_API static void validate(const char* op, const View& w);

  /// Throws Error naming the row whose last group has a value other than zero beyond cols. Kernels may
  /// multiply those values by anything.
  SPARSELOOM_API static void validate_values(const char* op, const View& w, DType dtype, const void* values);
};

static_assert(Layout<Semi24>);

}  // namespace sparseloom
