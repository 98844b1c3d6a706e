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
#include "kernels/bitmap_linear/cpu/dw.h"
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
#include "kernels/bitmap_linear/cpu/avx512/expanded-inl.h"
#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
#include "kernels/bitmap_linear/cpu/generic/lanes-inl.h"
#include "kernels/bitmap_linear/cpu/generic/cells-inl.h"
#include "kernels/bitmap_linear/cpu/generic/tokens-inl.h"
#include "kernels/bitmap_linear/cpu/generic/forward-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dx-inl.h"
#include "kernels/bitmap_linear/cpu/generic/floats-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dw-inl.h"
// clang-format on

// Writes the lanes of a vector whose bits are set.
[[gnu::always_inline]] inline float* keep_lanes(float* to, const float* end, Vec sums, __mmask16 bits) {
  const int stored = std::popcount(static_cast<unsigned>(bits));
  const Vec kept = _mm512_castsi512_ps(compressed_words(bits, _mm512_castps_si512(sums)));
  if (end - to >= kLanes)
    store(to, kept);
  else
    _mm512_mask_storeu_ps(to, first(stored), kept);
  return to + stored;
}
template <class T>
[[gnu::always_inline]] inline T* keep_lanes(T* to, const T* end, Vec sums, __mmask16 bits) {
  const int stored = std::popcount(static_cast<unsigned>(bits));
  const Vec kept = _mm512_castsi512_ps(compressed_words(bits, _mm512_castps_si512(sums)));
  if (end - to >= kLanes)
    narrow(to, kept);
  else {  // a copy of a number of bytes is a call, beside which the sums of the loop have no registers
    T whole[kLanes];
    narrow(whole, kept);
    _mm256_mask_storeu_epi16(to, first(stored),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(whole)));
  }
  return to + stored;
}
template <class T>
struct DwLanes : Lanes<T> {
  [[gnu::always_inline]] static Vec cells(const T* token, const T*, std::int64_t n) {
    return n == kLanes ? widen(token) : widen_first(token, n);
  }
  [[gnu::always_inline]] static T* keep(T* to, const T* end, const float* sums, std::uint64_t bits) {
    for (int v = 0; v < cpu::kBitmapDwCols / kLanes; ++v, bits >>= kLanes)
      to = keep_lanes(to, end, load(sums + v * kLanes), static_cast<__mmask16>(bits));
    return to;
  }
};
#define SPARSELOOM_BY_DTYPE(name, function)                                      \
  void name(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) { \
    switch (job.args.dtype) {                                                    \
      case DType::f16: return function<DwLanes<cpu::F16>>(job, begin, end);      \
      case DType::bf16: return function<DwLanes<cpu::Bf16>>(job, begin, end);    \
      default: return function<DwLanes<float>>(job, begin, end);                 \
    }                                                                            \
  }
SPARSELOOM_BY_DTYPE(dw_x_bitmap, prepare_dw_x)
SPARSELOOM_BY_DTYPE(dw_dy_bitmap, prepare_dw_dy)
SPARSELOOM_BY_DTYPE(dw_rows_bitmap, dw_rows)
#undef SPARSELOOM_BY_DTYPE
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx512_bitmap"};

const BitmapOps kBitmapAvx512{&bitmap_runs,           sizeof(float),     avx512::widen_bitmap,
                              avx512::forward_bitmap, avx512::dx_bitmap, avx512::transpose_cells};
const BitmapDwOps kBitmapDwAvx512{&bitmap_runs, 1, avx512::dw_x_bitmap, avx512::dw_dy_bitmap,
                                  avx512::dw_rows_bitmap};
}  // namespace sparseloom::kernels::cpu

#endif
