// Bitmaps as a layout: copies to dense rows, which copy bytes of any dtype, and checks.
#include "sparseloom/bitmap.h"

#include <cstring>
#include <string>

#include "core/check.h"
#include "layout/word.h"

namespace sparseloom {
namespace {

std::int64_t ones(const std::uint8_t* bits, std::int64_t bytes) {
  std::int64_t count = 0, byte = 0;
  for (; byte + 8 <= bytes; byte += 8) {
    std::uint64_t word;
    std::memcpy(&word, bits + byte, sizeof word);
    count += std::popcount(word);
  }
  for (; byte < bytes; ++byte) count += std::popcount(bits[byte]);
  return count;
}

}  // namespace

void Bitmap::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                    std::int64_t end) {
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    const W* const all = static_cast<const W*>(values);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::uint8_t* const bits = w.bits + row * w.row_bytes();
      W* const to = static_cast<W*>(dense.data) + row * dense.stride;
      std::int64_t slot = w.crow[row], col = 0;
      // Without branches, which take three times as long as they cannot be foretold; each column reads the
      // next value, stored there or not, so that the last eight values are left to the loop below.
      for (; col + 8 <= w.cols && slot + 8 < w.stored; col += 8)
        for (int i = 0; i < 8; ++i) {
          const unsigned bit = bits[col / 8] >> i & 1u;
          to[col + i] = all[slot] & static_cast<W>(W{0} - static_cast<W>(bit));
          slot += bit;
        }
      for (; col < w.cols; ++col) to[col] = (bits[col / 8] >> (col % 8) & 1) != 0 ? all[slot++] : W{0};
    }
  });
}

void Bitmap::pack(const View& w, const ConstMatrixView& dense, void* values, std::int64_t begin,
                  std::int64_t end) {
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    for (std::int64_t row = begin; row < end; ++row) {
      const W* const from = static_cast<const W*>(dense.data) + row * dense.stride;
      for_each_in_row(
          w, row, [&](std::int64_t col, std::int64_t slot) { static_cast<W*>(values)[slot] = from[col]; });
    }
  });
}

void Bitmap::validate(const char* op, const View& w) {
  const char* const remedy = "make the index with layouts.Bitmap";
  if (!layout::countable(w.rows) || !layout::countable(w.cols) || w.stored < 0)
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(w.rows, w.cols), "pass the weight's shape");
  if (!has_memory(w)) core::fail(op, "bits and crow", "a null pointer", "pass the index of the weight");
  const std::int64_t bytes = w.row_bytes();
  const unsigned behind = 0xffu & ~((1u << (w.cols % 8 == 0 ? 8 : w.cols % 8)) - 1);
  std::int64_t count = 0;
  for (std::int64_t row = 0; row <= w.rows; ++row) {
    if (w.crow[row] != count)
      core::fail(op, "crow[" + std::to_string(row) + "] = " + std::to_string(count) + ", as the bits say",
                 std::to_string(w.crow[row]), remedy);
    if (row == w.rows) break;
    const std::uint8_t* const bits = w.bits + row * bytes;
    if (bytes > 0 && (bits[bytes - 1] & behind) != 0)
      core::fail(op, "no bit behind column " + std::to_string(w.cols - 1),
                 "one in row " + std::to_string(row), remedy);
    count += ones(bits, bytes);
  }
  if (count != w.stored)
    core::fail(op, std::to_string(w.stored) + " bits, one for each value", std::to_string(count), remedy);
}

}  // namespace sparseloom
