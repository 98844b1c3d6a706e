// avx512vnni_bitmap: 64 columns of int8 a vector, spread by VPEXPANDB (VBMI2) and multiplied in quads by
// VPDPBUSD, whose first operand is unsigned: x + 128. 128 times the sum of each row of W, which the same
// instruction finds on the way, is subtracted at the end. All of it is exact: sums wrap modulo 2^32, and the
// true sum fits.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bitmap_linear/cpu/expand.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_vnni/begin_vbmi2.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/avx512/expand-inl.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
#include "kernels/bitmap_linear/cpu/generic/cells-inl.h"
#include "kernels/bitmap_linear/cpu/generic/tokens-inl.h"
#include "kernels/bitmap_linear/cpu/generic/forward-inl.h"
// clang-format on

[[gnu::always_inline]] inline Vec add_cells(Vec a, Vec b) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

struct Quads {
  using Value = std::int8_t;
  using X = std::uint8_t;
  static constexpr int kColumns = 64;
  static constexpr bool kOffset = true, kFinite = true, kByTokens = false;
  using V = __m512i;
  [[gnu::always_inline]] static V none() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static V load(const void* p) { return _mm512_loadu_si512(p); }
  [[gnu::always_inline]] static void store(void* p, V v) { _mm512_storeu_si512(p, v); }
  [[gnu::always_inline]] static V weights(const Value* p, std::uint64_t bits) {
    return expanded_bytes(bits, load(p));
  }
  [[gnu::always_inline]] static V offset() { return _mm512_set1_epi8(static_cast<char>(128)); }
  [[gnu::always_inline]] static V step(V sums, V x, V w) { return _mm512_dpbusd_epi32(sums, x, w); }
  [[gnu::always_inline]] static V add(V a, V b) { return _mm512_add_epi32(a, b); }
  [[gnu::always_inline]] static float total(V sums, V offsets) {
    return static_cast<float>(_mm512_reduce_add_epi32(_mm512_sub_epi32(sums, offsets)));
  }
  [[gnu::always_inline]] static Vec totals(const V (&sums)[kLanes], V offsets) {
    Vec cells[kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { cells[i.value] = _mm512_castsi512_ps(sums[i.value]); });
    const V whole = _mm512_set1_epi32(_mm512_reduce_add_epi32(offsets));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_castps_si512(sum_lanes_by<add_cells>(cells)), whole));
  }
};

bool shift_bitmap(DType, const void* from, std::int64_t n, std::int64_t room, void* to) {
  const auto* const values = static_cast<const std::int8_t*>(from);
  auto* const shifted = static_cast<std::uint8_t*>(to);
  for (std::int64_t i = 0; i < room; i += Quads::kColumns) {
    const std::int64_t left = std::clamp<std::int64_t>(n - i, 0, Quads::kColumns);
    const __mmask64 here = left == Quads::kColumns ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const __m512i x = _mm512_maskz_loadu_epi8(here, values + (left == 0 ? 0 : i));
    _mm512_storeu_si512(shifted + i, _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(128))));
  }
  return true;
}

void forward_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  forward_expand<Quads>(job, begin, end);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx512vnni_bitmap"};

const BitmapOps kBitmapQuads{&bitmap_runs,
                             sizeof(std::uint8_t),
                             avx512_vnni_vbmi2::shift_bitmap,
                             avx512_vnni_vbmi2::forward_bitmap,
                             nullptr,
                             nullptr};
}  // namespace sparseloom::kernels::cpu

#endif
