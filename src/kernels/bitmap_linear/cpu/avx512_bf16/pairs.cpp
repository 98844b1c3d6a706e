// avx512bf16_bitmap: 32 columns a vector, spread as 16-bit elements by VPEXPANDW (VBMI2) and multiplied in
// pairs by VDPBF16PS. x stays bf16: half of avx512_bitmap's loads, a quarter of its instructions an element.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bitmap_linear/cpu/dw.h"
#include "kernels/bitmap_linear/cpu/expand.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_bf16/begin_vbmi2.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/avx512/expand-inl.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bitmap_linear/cpu/avx512/expanded-inl.h"
#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
#include "kernels/bitmap_linear/cpu/generic/cells-inl.h"
#include "kernels/bitmap_linear/cpu/generic/tokens-inl.h"
#include "kernels/bitmap_linear/cpu/generic/forward-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dx-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dw-inl.h"
// clang-format on

struct Pairs : Floats {
  using Value = cpu::Bf16;
  using X = cpu::Bf16;
  static constexpr int kColumns = 32, kCellRows = 2;
  [[gnu::always_inline]] static Vec weights(const Value* p, unsigned bits) {
    return _mm512_castsi512_ps(expanded_halves(bits, _mm512_loadu_si512(p)));
  }
  [[gnu::always_inline]] static Vec kept(Vec x, unsigned bits) {
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi16(bits, _mm512_castps_si512(x)));
  }
  [[gnu::always_inline]] static Vec step(Vec sums, Vec x, Vec w) {
    return _mm512_dpbf16_ps(sums, (__m512bh)(x), (__m512bh)(w));  // casts of vector types keep the bits
  }
  [[gnu::always_inline]] static Vec splat_one(const X* dy) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(std::uint32_t{dy->bits} << 16)));
  }
  // Two rows (of which the second may be missing, null) from vector `first` of sixteen columns on, as cells.
  [[gnu::always_inline]] static void expand_pair(const std::uint8_t* upper, const std::uint8_t* lower,
                                                 std::int64_t bytes, const Value*& above, const Value*& below,
                                                 std::int64_t first, std::int64_t vectors, float* to) {
    const __m512i columns =
        _mm512_cvtepu16_epi32(_mm256_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    // word 2 c of a cell comes from the upper row, word 2 c + 1 from the lower one, whose words begin at 32
    const __m512i left =
        _mm512_or_si512(columns, _mm512_slli_epi32(_mm512_add_epi32(columns, _mm512_set1_epi32(32)), 16));
    const __m512i right = _mm512_add_epi16(left, _mm512_set1_epi16(16));
    const Value *a = above, *b = lower == nullptr ? above : below;
    const auto expand = [&](std::int64_t i, unsigned here, unsigned next) __attribute__((always_inline)) {
      const __m512i w = expanded_halves(here, _mm512_loadu_si512(a)),
                    v = expanded_halves(next, _mm512_loadu_si512(b));
      _mm512_storeu_si512(to + i * kColumns, _mm512_permutex2var_epi16(w, left, v));
      _mm512_storeu_si512(to + i * kColumns + kLanes, _mm512_permutex2var_epi16(w, right, v));
      a += std::popcount(here);
      b += std::popcount(next);
    };
    const std::int64_t begin = first * kLanes / kColumns, count = vectors * kLanes / kColumns;
    const std::int64_t whole = std::min(count, bytes * 8 / kColumns - begin);
    if (lower == nullptr) {
      for (std::int64_t i = 0; i < whole; ++i) expand(i, bits_of<kColumns>(upper, begin + i), 0);
      if (whole < count) expand(whole, last_bits_of<kColumns>(upper, begin + whole, bytes), 0);
      above = a;
      return;
    }
    for (std::int64_t i = 0; i < whole; ++i)
      expand(i, bits_of<kColumns>(upper, begin + i), bits_of<kColumns>(lower, begin + i));
    if (whole < count)
      expand(whole, last_bits_of<kColumns>(upper, begin + whole, bytes),
             last_bits_of<kColumns>(lower, begin + whole, bytes));
    above = a, below = b;
  }
};

bool copy_bitmap(DType, const void* from, std::int64_t n, std::int64_t room, void* to) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  const auto* const values = static_cast<const cpu::Bf16*>(from);
  auto* const copy = static_cast<cpu::Bf16*>(to);
  __mmask32 infinite = 0;
  for (std::int64_t i = 0; i < room; i += Pairs::kColumns) {
    const auto left = static_cast<unsigned>(std::clamp<std::int64_t>(n - i, 0, Pairs::kColumns));
    const auto here = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
    const __m512i x = _mm512_maskz_loadu_epi16(here, values + (left == 0 ? 0 : i));
    infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
    _mm512_storeu_si512(copy + i, x);
  }
  return infinite == 0;
}

void forward_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  forward_expand<Pairs>(job, begin, end);
}
void dx_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  dx_expand<Pairs>(job, begin, end, room);
}

struct DwPairs : Pairs {
  [[gnu::always_inline]] static Vec cells(const Value* token, const Value* next, std::int64_t n) {
    const auto words = [n](const Value* from) __attribute__((always_inline)) {
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), from));
    };
    const __m512i upper = words(token);
    if (next == nullptr) return _mm512_castsi512_ps(upper);
    return _mm512_castsi512_ps(_mm512_or_si512(upper, _mm512_slli_epi32(words(next), 16)));
  }
  [[gnu::always_inline]] static Value* keep(Value* to, const Value* end, const float* sums,
                                            std::uint64_t bits) {
    for (int v = 0; v < cpu::kBitmapDwCols / kColumns; ++v, bits >>= kColumns, sums += kColumns) {
      const auto here = static_cast<__mmask32>(bits);
      const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(Floats::load(sums + kLanes), Floats::load(sums));
      const int stored = std::popcount(here);
      const __m512i kept = compressed_halves(here, rounded);
      if (end - to >= kColumns)
        _mm512_storeu_si512(to, kept);
      else
        _mm512_mask_storeu_epi16(to, static_cast<__mmask32>((std::uint64_t{1} << stored) - 1), kept);
      to += stored;
    }
    return to;
  }
};
void dw_x_bitmap(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  prepare_dw_x<DwPairs>(job, begin, end);
}
void dw_dy_bitmap(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  prepare_dw_dy<DwPairs>(job, begin, end);
}
void dw_rows_bitmap(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  dw_rows<DwPairs>(job, begin, end);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx512bf16_bitmap"};

const BitmapOps kBitmapPairs{&bitmap_runs,
                             sizeof(Bf16),
                             avx512_bf16_vbmi2::copy_bitmap,
                             avx512_bf16_vbmi2::forward_bitmap,
                             avx512_bf16_vbmi2::dx_bitmap,
                             avx512_bf16_vbmi2::transpose_cells};
const BitmapDwOps kBitmapDwPairs{&bitmap_runs, 2, avx512_bf16_vbmi2::dw_x_bitmap,
                                 avx512_bf16_vbmi2::dw_dy_bitmap, avx512_bf16_vbmi2::dw_rows_bitmap};
}  // namespace sparseloom::kernels::cpu

#endif
