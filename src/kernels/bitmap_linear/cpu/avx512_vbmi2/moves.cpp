// Copies of bitmaps by AVX-512 VBMI2: 32 columns of 16 bits, or 16 of 32, a vector. Scalar copies take some 8
// cycles for 8 columns, these 5 for 32.
#if defined(__x86_64__)

#include "kernels/bitmap_linear/cpu/moves.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/shared/cpu/avx512_vbmi2/begin.h"
#include "kernels/shared/cpu/intrinsics.h"
namespace {
#include "kernels/shared/cpu/avx512/expand-inl.h"

// A vector of elements of some width. Masks say which elements are read or written.
struct Halves {
  using Mask = __mmask32;
  using Element = std::uint16_t;
  static constexpr std::int64_t kColumns = 32;
  [[gnu::always_inline]] static __m512i load(Mask mask, const Element* p) {
    return _mm512_maskz_loadu_epi16(mask, p);
  }
  [[gnu::always_inline]] static void store(Element* p, Mask mask, __m512i v) {
    _mm512_mask_storeu_epi16(p, mask, v);
  }
  [[gnu::always_inline]] static __m512i expand(Mask bits, __m512i v) { return expanded_halves(bits, v); }
  [[gnu::always_inline]] static __m512i compress(Mask bits, __m512i v) { return compressed_halves(bits, v); }
};
struct Words {
  using Mask = __mmask16;
  using Element = std::uint32_t;
  static constexpr std::int64_t kColumns = 16;
  [[gnu::always_inline]] static __m512i load(Mask mask, const Element* p) {
    return _mm512_maskz_loadu_epi32(mask, p);
  }
  [[gnu::always_inline]] static void store(Element* p, Mask mask, __m512i v) {
    _mm512_mask_storeu_epi32(p, mask, v);
  }
  [[gnu::always_inline]] static __m512i expand(Mask bits, __m512i v) { return expanded_words(bits, v); }
  [[gnu::always_inline]] static __m512i compress(Mask bits, __m512i v) { return compressed_words(bits, v); }
};

// The lowest n lanes, at most all of them.
template <class Vector>
[[gnu::always_inline]] inline typename Vector::Mask first_lanes(std::int64_t n) {
  return static_cast<typename Vector::Mask>((std::uint64_t{1} << n) - 1);
}

// Calls copy(column, lanes, bits) for each vector of a row: which of its lanes are columns, which are stored.
template <class Vector, class Copy>
[[gnu::always_inline]] inline void each_vector(const BitmapView& w, std::int64_t row, Copy copy) {
  using Mask = typename Vector::Mask;
  const std::uint8_t* const bits = w.bits + row * w.row_bytes();
  std::int64_t col = 0;
  for (; col + Vector::kColumns <= w.cols; col += Vector::kColumns) {
    Mask here;
    std::memcpy(&here, bits + col / 8, sizeof here);
    copy(col, static_cast<Mask>(~Mask{0}), here);
  }
  if (col < w.cols) {
    Mask here = 0;
    std::memcpy(&here, bits + col / 8, static_cast<std::size_t>(w.row_bytes() - col / 8));
    copy(col, first_lanes<Vector>(w.cols - col), here);
  }
}

template <class Vector>
void unpack_as(const BitmapView& w, const void* values, const MatrixView& dense, std::int64_t begin,
               std::int64_t end) {
  using Element = typename Vector::Element;
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* from = static_cast<const Element*>(values) + w.crow[row];
    std::int64_t left = w.stored - w.crow[row];  // values from here on: whole vectors of them can be read
    Element* const to = static_cast<Element*>(dense.data) + row * dense.stride;
    each_vector<Vector>(
        w, row, [&](std::int64_t col, auto lanes, auto bits) __attribute__((always_inline)) {
          const int stored = std::popcount(bits);
          const __m512i read = left >= Vector::kColumns ? _mm512_loadu_si512(from)
                                                        : Vector::load(first_lanes<Vector>(stored), from);
          const __m512i spread = Vector::expand(bits, read);
          if (lanes == static_cast<typename Vector::Mask>(~typename Vector::Mask{0}))
            _mm512_storeu_si512(to + col, spread);
          else
            Vector::store(to + col, lanes, spread);
          from += stored;
          left -= stored;
        });
  }
}

template <class Vector>
void pack_as(const BitmapView& w, const ConstMatrixView& dense, void* values, std::int64_t begin,
             std::int64_t end) {
  using Element = typename Vector::Element;
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* const from = static_cast<const Element*>(dense.data) + row * dense.stride;
    Element* to = static_cast<Element*>(values) + w.crow[row];
    each_vector<Vector>(
        w, row, [&](std::int64_t col, auto lanes, auto bits) __attribute__((always_inline)) {
          const int stored = std::popcount(bits);
          Vector::store(to, first_lanes<Vector>(stored),
                        Vector::compress(bits, Vector::load(lanes, from + col)));
          to += stored;
        });
  }
}

void unpack_bitmap(const BitmapView& w, const void* values, const MatrixView& dense, std::int64_t begin,
                   std::int64_t end) {
  size_of(dense.dtype) == 2 ? unpack_as<Halves>(w, values, dense, begin, end)
                            : unpack_as<Words>(w, values, dense, begin, end);
}
void pack_bitmap(const BitmapView& w, const ConstMatrixView& dense, void* values, std::int64_t begin,
                 std::int64_t end) {
  size_of(dense.dtype) == 2 ? pack_as<Halves>(w, dense, values, begin, end)
                            : pack_as<Words>(w, dense, values, begin, end);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
const BitmapMoves kBitmapMovesVbmi2{avx512_vbmi2::unpack_bitmap, avx512_vbmi2::pack_bitmap};
}  // namespace sparseloom::kernels::cpu

#endif
