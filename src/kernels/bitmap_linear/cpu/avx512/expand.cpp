// avx512_bitmap: sixteen lanes of fp32, to which VEXPANDPS moves the values. VPEXPANDW (VBMI2) before they
// are widened would take as many instructions.
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

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
// clang-format on

[[gnu::always_inline]] inline Vec masked(Vec x, unsigned bits) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
}
template <class T>
[[gnu::always_inline]] inline Vec expanded(const T* p, unsigned bits) {
  return _mm512_maskz_expand_ps(static_cast<__mmask16>(bits), widen(p));
}

#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx512_bitmap"};

const BitmapOps kBitmapAvx512{&bitmap_runs, avx512::widen_bitmap, avx512::forward_bitmap, avx512::dx_bitmap};
}  // namespace sparseloom::kernels::cpu

#endif
