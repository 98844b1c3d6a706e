// avx2_bitmap: eight lanes of fp32, to which a table by the byte of their bits moves the values.
#if defined(__x86_64__)

#include "kernels/bitmap_linear/cpu/expand.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

namespace sparseloom::kernels::cpu {
namespace {

// For each byte of bits, where each of the eight lanes gets its value from; the sign bit marks the lanes that
// get one (kLanesOf) or none (the others, as VPSHUFB has it).
struct Tables {
  alignas(64) std::int32_t lanes[256][8] = {};  // the place of a value among eight of 32 bits
  alignas(64) std::int8_t high[256][32] = {};   // of 16 bits, moved to the upper halves of 32
  alignas(64) std::int8_t halves[256][16] = {};

  constexpr Tables() {
    for (int bits = 0; bits < 256; ++bits)
      for (int lane = 0, value = 0; lane < 8; ++lane) {
        const bool here = (bits >> lane & 1) != 0;
        lanes[bits][lane] = here ? static_cast<std::int32_t>(0x80000000u | static_cast<unsigned>(value)) : 0;
        for (int byte = 0; byte < 2; ++byte) {
          const auto from = static_cast<std::int8_t>(here ? 2 * value + byte : -128);
          high[bits][4 * lane + byte] = -128, high[bits][4 * lane + 2 + byte] = from;
          halves[bits][2 * lane + byte] = from;
        }
        value += here ? 1 : 0;
      }
  }
};
constexpr Tables kTables;

}  // namespace
}  // namespace sparseloom::kernels::cpu

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
// clang-format on

[[gnu::always_inline]] inline __m256i table_at(const void* entry) {
  return _mm256_load_si256(static_cast<const __m256i*>(entry));
}
[[gnu::always_inline]] inline Vec masked(Vec x, unsigned bits) {
  const __m256i here = _mm256_srai_epi32(table_at(cpu::kTables.lanes[bits]), 31);
  return _mm256_and_ps(x, _mm256_castsi256_ps(here));
}
[[gnu::always_inline]] inline Vec expanded(const float* p, unsigned bits) {
  return masked(_mm256_permutevar8x32_ps(load(p), table_at(cpu::kTables.lanes[bits])), bits);
}
[[gnu::always_inline]] inline Vec expanded(const cpu::Bf16* p, unsigned bits) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
  return _mm256_castsi256_ps(
      _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(packed), table_at(cpu::kTables.high[bits])));
}
[[gnu::always_inline]] inline Vec expanded(const cpu::F16* p, unsigned bits) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
  const __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(cpu::kTables.halves[bits]));
  return _mm256_cvtph_ps(_mm_shuffle_epi8(packed, from));
}

// clang-format off
#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
#include "kernels/bitmap_linear/cpu/generic/lanes-inl.h"
#include "kernels/bitmap_linear/cpu/generic/cells-inl.h"
#include "kernels/bitmap_linear/cpu/generic/tokens-inl.h"
#include "kernels/bitmap_linear/cpu/generic/forward-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dx-inl.h"
#include "kernels/bitmap_linear/cpu/generic/floats-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx2_bitmap"};

const BitmapOps kBitmapAvx2{&bitmap_runs,         sizeof(float),   avx2::widen_bitmap,
                            avx2::forward_bitmap, avx2::dx_bitmap, nullptr};
}  // namespace sparseloom::kernels::cpu

#endif
