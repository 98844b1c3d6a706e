// Rows to int8, sixteen at a time.
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
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
// clang-format on

constexpr int kRounded = kLanes;
using Bits = __m512i;

[[gnu::always_inline]] inline Vec times(Vec x, float factor) {
  return _mm512_mul_ps(x, _mm512_set1_ps(factor));
}
[[gnu::always_inline]] inline Vec clipped(Vec x) {
  x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
  return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-cpu::kMostInt8)), _mm512_set1_ps(cpu::kMostInt8));
}
[[gnu::always_inline]] inline void put(std::int8_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

template <class T>
[[gnu::always_inline]] inline Bits magnitude_bits(const T* p) {
  const Bits bits = _mm512_loadu_si512(p);
  return _mm512_and_si512(bits, sizeof(T) == 4 ? _mm512_set1_epi32(0x7fffffff) : _mm512_set1_epi16(0x7fff));
}
template <class T>
[[gnu::always_inline]] inline Bits larger_bits(Bits a, Bits b) {
  return sizeof(T) == 4 ? _mm512_max_epi32(a, b) : _mm512_max_epi16(a, b);
}

#include "kernels/shared/cpu/round_rows-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {

void round_rows_avx512(const RoundRows& call, std::int64_t begin, std::int64_t end) {
  avx512::round_rows(call, begin, end);
}

}  // namespace sparseloom::kernels::cpu

#endif
