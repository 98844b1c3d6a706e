// Writes the bitmap of a 2:4 weight, and lends the copies of bitmaps to the row `dense`.
#include "kernels/semi24_linear/cpu/bits.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/bitmap_linear/cpu/moves.h"
#include "kernels/shared/cpu/cell.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom::kernels {
#if defined(__x86_64__)
namespace cpu {
namespace {

/// What a row's last byte keeps behind an odd number of groups: no group has the bits of positions 0 and 0.
constexpr std::uint8_t kOneGroup = 15;

std::int64_t bytes_of(const Semi24View& w) { return core::round_up(w.rows * w.position_bytes(), kAlign); }

}  // namespace

std::size_t bits_workspace(const Semi24View& w) {
  const std::int64_t bounds = (w.rows + 1) * static_cast<std::int64_t>(sizeof(std::int32_t));
  return static_cast<std::size_t>(bytes_of(w) + core::round_up(bounds, kAlign));
}

BitmapView bitmap_of(const Semi24View& w, std::byte* room, const Executor& executor) {
  const std::int64_t bytes = w.position_bytes(), values = w.row_values();
  auto* const bits = reinterpret_cast<std::uint8_t*>(room);
  auto* const crow = reinterpret_cast<std::int32_t*>(room + bytes_of(w));
  // Memory's rate: 16 bytes are some four cycles of instructions (counted, not measured).
  constexpr double kBytesPerUs = 10e3;
  const Executor threads = runtime::if_worth_it(executor, static_cast<double>(w.rows * bytes) / kBytesPerUs);
  constexpr std::int64_t kRows = generic::kUnpackedRows;
  runtime::parallel_tasks(threads, core::ceil_div(w.rows, kRows), [&](std::int64_t task) {
    const std::int64_t begin = task * kRows, end = std::min(begin + kRows, w.rows);
    bits_of_positions_avx2(w.positions + begin * bytes, (end - begin) * bytes, bits + begin * bytes);
    for (std::int64_t row = begin; row < end; ++row) {
      crow[row] = static_cast<std::int32_t>(row * values);
      if (w.groups() % 2 == 1) bits[(row + 1) * bytes - 1] &= kOneGroup;
    }
  });
  crow[w.rows] = static_cast<std::int32_t>(w.rows * values);
  return {w.rows, w.cols, w.rows * values, bits, crow};
}

}  // namespace cpu
#endif

namespace generic {

template <>
void unpack_rows<Semi24>(const Semi24View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                         std::int64_t end) {
#if defined(__x86_64__)
  static const bool has = runtime::active_isa().has(runtime::Isa::avx512_vbmi2);
  const auto size = static_cast<std::int64_t>(size_of(dense.dtype));
  if (has && (size == 2 || size == 4)) {
    constexpr std::int64_t kColumns = 4096;
    constexpr std::int32_t kFirst[2] = {};
    std::uint8_t bits[kColumns / 8];
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t col = 0; col < w.cols; col += kColumns) {
        const std::int64_t cols = std::min(kColumns, w.cols - col), bytes = (cols + 7) / 8;
        cpu::bits_of_positions_avx2(w.positions + row * w.position_bytes() + col / 8, bytes, bits);
        if (col + cols == w.cols && w.groups() % 2 == 1) bits[bytes - 1] &= cpu::kOneGroup;
        const std::int64_t first = row * w.row_values() + col / 2;
        // all values behind it, so that whole vectors are read
        const BitmapView piece{1, cols, w.rows * w.row_values() - first, bits, kFirst};
        const auto* const from = static_cast<const std::byte*>(values) + first * size;
        const MatrixView to{static_cast<std::byte*>(dense.data) + (row * dense.stride + col) * size,
                            dense.dtype, 1, cols, dense.stride};
        cpu::kBitmapMovesVbmi2.unpack(piece, from, to, 0, 1);
      }
    return;
  }
#endif
  Semi24::unpack(w, values, dense, begin, end);
}

}  // namespace generic
}  // namespace sparseloom::kernels
