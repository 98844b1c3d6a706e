// Rows to int8, eight at a time.
#if defined(__x86_64__)

#include "kernels/shared/cpu/round_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
// clang-format on

constexpr int kRounded = 8;
using Bits = __m256i;

[[gnu::always_inline]] inline Vec8 widen(const auto* p) { return widen8(p); }
[[gnu::always_inline]] inline Vec8 times(Vec8 x, float factor) { return _mm256_mul_ps(x, all8(factor)); }
[[gnu::always_inline]] inline Vec8 clipped(Vec8 x) {
  x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  return _mm256_min_ps(_mm256_max_ps(x, all8(-cpu::kMostInt8)), all8(cpu::kMostInt8));
}
[[gnu::always_inline]] inline void put(std::int8_t* p, Vec8 x) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i_u*>(p), _mm_packs_epi16(half, half));
}

template <class T>
[[gnu::always_inline]] inline Bits magnitude_bits(const T* p) {
  const Bits bits = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
  return _mm256_and_si256(bits, sizeof(T) == 4 ? _mm256_set1_epi32(0x7fffffff) : _mm256_set1_epi16(0x7fff));
}
template <class T>
[[gnu::always_inline]] inline Bits larger_bits(Bits a, Bits b) {
  return sizeof(T) == 4 ? _mm256_max_epi32(a, b) : _mm256_max_epi16(a, b);
}

#include "kernels/shared/cpu/round_rows-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {

void round_rows_avx2(const RoundRows& call, std::int64_t begin, std::int64_t end) {
  avx2::round_rows(call, begin, end);
}

}  // namespace sparseloom::kernels::cpu

#endif
