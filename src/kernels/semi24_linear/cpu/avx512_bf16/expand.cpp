// avx512bf16_expand: 32 columns per step, expanded as 16-bit elements by VPEXPANDW (VBMI2) and multiplied in
// pairs by VDPBF16PS.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/semi24_linear/cpu/ops.h"
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
#include "kernels/semi24_linear/cpu/generic/masks-inl.h"
// clang-format on

template <class T>
struct Expand {
  static constexpr int kElements = 32;
  using X = T;
  [[gnu::always_inline]] static void prepare(const std::uint8_t* positions, std::uint8_t* out) {
    masks_of(positions, out);
  }
  [[gnu::always_inline]] static Vec weights(const T* values, const std::uint8_t* bytes) {
    __mmask32 stored;
    std::memcpy(&stored, bytes, sizeof stored);
    const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(values));
    return _mm512_castsi512_ps(expanded_halves(stored, _mm512_zextsi256_si512(sixteen)));
  }
  [[gnu::always_inline]] static Vec load(const X* x) { return _mm512_loadu_ps(x); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(w));  // casts of vector types keep the bits
  }
};
#include "kernels/semi24_linear/cpu/generic/expand-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs expand_runs{"avx512bf16_expand"};

const ExpandOps* expand_avx512_bf16(DType dtype) noexcept {
  namespace own = avx512_bf16_vbmi2;
  static const ExpandOps bf16{&expand_runs, 2, own::pack_expand_x<Bf16>, own::expand_units<Bf16>};
  return dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
