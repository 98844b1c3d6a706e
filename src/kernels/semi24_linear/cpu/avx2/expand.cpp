// avx2_expand: eight columns a step, in fp32. A byte of positions says which of its four elements each lane
// takes, and a lane of zeros serves the others.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/intrinsics.h"
#include "kernels/bsr_linear/cpu/tile.h"
#include "kernels/semi24_linear/cpu/ops.h"
#include "kernels/semi24_linear/cpu/tables.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/bsr_linear/cpu/avx2/begin.h"
namespace {
#include "kernels/bsr_linear/cpu/generic/unroll-inl.h"
#include "kernels/bsr_linear/cpu/avx2/simd.h"
#include "kernels/bsr_linear/cpu/avx2/vector.h"
// clang-format on

[[gnu::always_inline]] inline __m128 widen4(const float* p) { return _mm_loadu_ps(p); }
[[gnu::always_inline]] inline __m128i four_halves(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i_u*>(p));
}
[[gnu::always_inline]] inline __m128 widen4(const cpu::F16* p) { return _mm_cvtph_ps(four_halves(p)); }
[[gnu::always_inline]] inline __m128 widen4(const cpu::Bf16* p) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(four_halves(p)), 16));
}

template <class T>
struct Expand {
  static constexpr int kElements = 8;
  using X = float;
  [[gnu::always_inline]] static void prepare(const std::uint8_t* positions, std::uint8_t* out) {
    std::memcpy(out, positions, 16);
  }
  [[gnu::always_inline]] static Vec weights(const T* values, const std::uint8_t* bytes) {
    const __m128i lanes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(cpu::kExpandTables.lanes + bytes[0]));
    return _mm256_permutevar8x32_ps(_mm256_zextps128_ps256(widen4(values)), _mm256_cvtepu8_epi32(lanes));
  }
  [[gnu::always_inline]] static Vec load(const X* x) { return avx2::load(x); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
};
#include "kernels/semi24_linear/cpu/generic/expand-inl.h"
}  // namespace
#include "kernels/bsr_linear/cpu/avx2/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs expand_runs{"avx2_expand"};

const ExpandOps* expand_avx2(DType dtype) noexcept {
  static const ExpandOps f32{&expand_runs, 4, avx2::pack_expand_x<float>, avx2::expand_units<float>},
      f16{&expand_runs, 4, avx2::pack_expand_x<F16>, avx2::expand_units<F16>},
      bf16{&expand_runs, 4, avx2::pack_expand_x<Bf16>, avx2::expand_units<Bf16>};
  return dtype == DType::f32 ? &f32 : dtype == DType::f16 ? &f16 : dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
