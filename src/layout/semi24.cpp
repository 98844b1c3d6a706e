// 2:4 as a layout: copies between dense and packed rows, which copy bytes of any dtype, and checks.
#include "layout/semi24.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "core/check.h"
#include "layout/word.h"

namespace sparseloom {
namespace {

using layout::with_word;

/// The two positions that a group stores, by the mask of its nonzeros.
struct Pair {
  std::uint8_t first, second, nonzeros;
};

constexpr std::array<Pair, 16> kPairs = [] {
  std::array<Pair, 16> pairs{};
  for (unsigned nonzero = 0; nonzero < 16; ++nonzero) {
    const int count = std::popcount(nonzero);
    unsigned kept = nonzero;
    // The lowest free positions complete the pair: each step sets the lowest clear bit.
    for (int have = count; have < 2; ++have) kept |= kept + 1;
    const auto first = static_cast<std::uint8_t>(std::countr_zero(kept));
    const auto second = static_cast<std::uint8_t>(std::countr_zero(kept & (kept - 1)));
    pairs[nonzero] = {first, second, static_cast<std::uint8_t>(count)};
  }
  return pairs;
}();

/// The groups among eight bytes that have first >= second: their lowest bits.
std::uint64_t descending(std::uint64_t bytes) {
  const std::uint64_t first = bytes, first_high = bytes >> 1, second = bytes >> 2, second_high = bytes >> 3;
  const std::uint64_t less = (second_high & ~first_high) | (~(second_high ^ first_high) & second & ~first);
  return ~less & 0x1111'1111'1111'1111;
}

/// Whether both groups of each of `count` bytes have first < second.
bool ascending(const std::uint8_t* bytes, std::int64_t count) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t);
  std::uint64_t wrong = 0;
  std::int64_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, sizeof word);
    wrong |= descending(word);
  }
  std::uint64_t last = 0x4444'4444'4444'4444;  // 0 < 1 in every group behind the last one
  if (i < count)
    std::memcpy(&last, bytes + i, static_cast<std::size_t>(count - i));  // null where there are none
  return (wrong | descending(last)) == 0;
}

/// The bits that must be clear in a zero: all but a float's sign.
template <class W>
W magnitude_bits(DType dtype) {
  const W all = static_cast<W>(~W{0});
  return dtype == DType::i8 ? all : static_cast<W>(all >> 1);
}

template <class W>
layout::Semi24Excess pack_words(const ConstMatrixView& dense, W* values, std::uint8_t* positions,
                                std::int64_t begin, std::int64_t end) {
  const Semi24View shape{dense.rows, dense.cols, positions};
  const std::int64_t groups = shape.groups(), bytes = shape.position_bytes();
  const W bits = magnitude_bits<W>(dense.dtype);
  for (std::int64_t row = begin; row < end; ++row) {
    const W* const from = static_cast<const W*>(dense.data) + row * dense.stride;
    W* const to = values + row * shape.row_values();
    std::uint8_t* const at = positions + row * bytes;
    std::fill_n(at, bytes, std::uint8_t{0});
    for (std::int64_t g = 0; g < groups; ++g) {
      W four[4] = {};
      const std::int64_t present = std::min<std::int64_t>(4, dense.cols - 4 * g);
      for (std::int64_t i = 0; i < present; ++i) four[i] = from[4 * g + i];
      unsigned nonzero = 0;
      for (unsigned i = 0; i < 4; ++i) nonzero |= static_cast<unsigned>((four[i] & bits) != 0) << i;
      const Pair pair = kPairs[nonzero];
      if (pair.nonzeros > 2) return {row, g, pair.nonzeros};
      to[2 * g] = four[pair.first], to[2 * g + 1] = four[pair.second];
      at[g / 2] |= static_cast<std::uint8_t>((pair.first | pair.second << 2) << (g % 2 * 4));
    }
  }
  return {};
}

/// For each pair of positions, all ones where the first element goes, and where the second one does.
template <class W>
struct FourMasks {
  W of[16][2][4] = {};
  constexpr FourMasks() {
    for (unsigned bits = 0; bits < 16; ++bits)
      of[bits][0][bits & 3u] = static_cast<W>(~W{0}), of[bits][1][bits >> 2] = static_cast<W>(~W{0});
  }
};

}  // namespace

layout::Semi24Excess layout::pack_rows(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                                       std::int64_t begin, std::int64_t end) {
  return with_word(dense.dtype, [&](auto word) {
    return pack_words(dense, static_cast<decltype(word)*>(values), positions, begin, end);
  });
}

// Four elements at a time, without a branch or a store per element: `dense` products unpack W in every call.
void Semi24::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                    std::int64_t end) {
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    using Four [[gnu::vector_size(4 * sizeof(W))]] = W;
    static constexpr FourMasks<W> masks;
    const std::int64_t whole = w.cols / 4;
    for (std::int64_t row = begin; row < end; ++row) {
      const W* const from = static_cast<const W*>(values) + row * w.row_values();
      W* const to = static_cast<W*>(dense.data) + row * dense.stride;
      const std::uint8_t* const bits_of = w.positions + row * w.position_bytes();
      const auto expand = [&](std::int64_t g, unsigned bits) {
        Four first, second;
        std::memcpy(&first, masks.of[bits][0], sizeof first);
        std::memcpy(&second, masks.of[bits][1], sizeof second);
        const Four four = (first & from[2 * g]) | (second & from[2 * g + 1]);
        std::memcpy(to + 4 * g, &four, sizeof four);
      };
      std::int64_t g = 0;
      for (; g + 2 <= whole; g += 2) {
        const unsigned both = bits_of[g / 2];
        expand(g, both & 15u), expand(g + 1, both >> 4);
      }
      if (g < whole) expand(g, bits_of[g / 2] & 15u);
      if (w.cols % 4 == 0) continue;
      std::fill(to + 4 * whole, to + w.cols, W{0});
      const unsigned bits = w.group(row, whole), position[2] = {bits & 3u, bits >> 2};
      for (std::int64_t i = 0; i < 2; ++i)
        if (4 * whole + position[i] < w.cols) to[4 * whole + position[i]] = from[2 * whole + i];
    }
  });
}

void Semi24::validate(const char* op, const View& w) {
  const auto place = [](std::int64_t row, std::int64_t group) {
    return " of row " + std::to_string(row) + ", group " + std::to_string(group);
  };
  if (w.rows < 0 || !layout::countable(w.cols))  // rows without columns take no memory
    core::fail(op, "sizes of 0 or more, and fewer than 2^31 columns", core::shape(w.rows, w.cols),
               "pass the weight's shape");
  if (w.positions == nullptr && w.rows > 0 && w.cols > 0)
    core::fail(op, "positions", "a null pointer", "pass what semi24_pack wrote");
  if (w.cols == 0) return;                    // any number of rows without a position
  const std::int64_t whole = w.groups() / 2;  // bytes of a row that hold two groups
  if (whole == w.position_bytes() && ascending(w.positions, w.rows * whole)) return;
  for (std::int64_t row = 0; row < w.rows; ++row) {
    const bool odd = whole < w.position_bytes();
    if (ascending(w.positions + row * w.position_bytes(), whole) &&
        (!odd || (w.group(row, w.groups()) == 0 &&
                  descending(w.group(row, w.groups() - 1) | 0x4444'4444'4444'4440) == 0)))
      continue;
    for (std::int64_t g = 0; g < w.groups(); ++g) {
      const unsigned bits = w.group(row, g), first = bits & 3u, second = bits >> 2;
      if (first >= second)
        core::fail(op, "two ascending positions in every group of four",
                   std::to_string(first) + " and " + std::to_string(second) + place(row, g),
                   "make positions with semi24_pack");
    }
    if (w.groups() % 2 == 1 && w.group(row, w.groups()) != 0)
      core::fail(op, "zero bits after the last group of a row",
                 std::to_string(w.group(row, w.groups())) + place(row, w.groups()),
                 "make positions with semi24_pack");
  }
}

void Semi24::validate_values(const char* op, const View& w, DType dtype, const void* values) {
  if (w.cols % 4 == 0) return;
  with_word(dtype, [&](auto word) {
    using W = decltype(word);
    const std::int64_t last = w.groups() - 1;
    for (std::int64_t row = 0; row < w.rows; ++row) {
      const unsigned bits = w.group(row, last), position[2] = {bits & 3u, bits >> 2};
      for (std::int64_t i = 0; i < 2; ++i)
        if (const W value = static_cast<const W*>(values)[row * w.row_values() + 2 * last + i];
            4 * last + position[i] >= w.cols && (value & magnitude_bits<W>(dtype)) != 0)
          core::fail(op, "no values beyond the " + std::to_string(w.cols) + " columns",
                     "one at column " + std::to_string(4 * last + position[i]) + " of row " +
                         std::to_string(row) + ", group " + std::to_string(last),
                     "make values with semi24_pack, or pass the weight's own cols");
    }
  });
}

}  // namespace sparseloom
