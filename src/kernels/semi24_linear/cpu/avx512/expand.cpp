// avx512_expand: sixteen columns per step, in fp32, expanded by VEXPANDPS.
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
#include "kernels/shared/cpu/avx512/begin.h"
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
  static constexpr int kElements = 16;
  using X = float;
  [[gnu::always_inline]] static void prepare(const std::uint8_t* positions, std::uint8_t* out) {
    masks_of(positions, out);
  }
  [[gnu::always_inline]] static Vec weights(const T* values, const std::uint8_t* bytes) {
    __mmask16 stored;
    std::memcpy(&stored, bytes, sizeof stored);
    return _mm512_castsi512_ps(
        expanded_words(stored, _mm512_castps_si512(_mm512_zextps256_ps512(widen8(values)))));
  }
  [[gnu::always_inline]] static Vec load(const X* x) { return avx512::load(x); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
};
#include "kernels/semi24_linear/cpu/generic/expand-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs expand_runs{"avx512_expand"};

const ExpandOps* expand_avx512(DType dtype) noexcept {
  static const ExpandOps f32{&expand_runs, 4, avx512::pack_expand_x<float>, avx512::expand_units<float>},
      f16{&expand_runs, 4, avx512::pack_expand_x<F16>, avx512::expand_units<F16>},
      bf16{&expand_runs, 4, avx512::pack_expand_x<Bf16>, avx512::expand_units<Bf16>};
  return dtype == DType::f32 ? &f32 : dtype == DType::f16 ? &f16 : dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
