// avx512bf16_select: sixteen tokens on the lanes. A group's two elements lie side by side, so that one
// VDPBF16PS multiplies them by one of the six pairs of columns, which x was ordered into.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/intrinsics.h"
#include "kernels/bsr_linear/cpu/tile.h"
#include "kernels/semi24_linear/cpu/ops.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/bsr_linear/cpu/avx512_bf16/begin.h"
namespace {
#include "kernels/bsr_linear/cpu/generic/unroll-inl.h"
#include "kernels/bsr_linear/cpu/avx2/simd.h"
#include "kernels/bsr_linear/cpu/avx512/vector.h"
// clang-format on

template <class T>
struct Select {
  static constexpr int kChoices = 6, kPicks = 1;

  // The pairs in the order of their four bits of positions, in which kChoice counts them.
  static void pack(const T* four, std::uint32_t* out, std::int64_t stride) {
    constexpr std::uint8_t kFirst[kChoices] = {0, 0, 1, 0, 1, 2}, kSecond[kChoices] = {1, 2, 2, 3, 3, 3};
    for (int i = 0; i < kChoices; ++i)
      out[i * stride] = four[kFirst[i]].bits | std::uint32_t{four[kSecond[i]].bits} << 16;
  }

  template <int kShift>
  [[gnu::always_inline]] static void offsets(const std::uint8_t* positions, std::uint16_t* out) {
    const __m128i choice = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 5, 0),
                  half = _mm_set1_epi8(15);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(positions));
    const __m128i halves =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, half), _mm_and_si128(_mm_srli_epi16(bytes, 4), half));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out),
                       _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_shuffle_epi8(choice, halves)), kShift));
  }

  struct Values {
    const T* values;
    [[gnu::always_inline]] explicit Values(const T* all) : values(all) {}
    [[gnu::always_inline]] Vec at(int pick) const {
      int pair;
      std::memcpy(&pair, static_cast<const void*>(values + 2 * pick), sizeof pair);
      return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
    }
  };
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(w));  // casts of vector types keep the bits
  }
};
#include "kernels/semi24_linear/cpu/generic/select-inl.h"
}  // namespace
#include "kernels/bsr_linear/cpu/avx512_bf16/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs select_runs{"avx512bf16_select"};

const SelectOps* select_avx512_bf16(DType dtype) noexcept {
  namespace own = avx512_bf16;
  static constexpr SelectOps bf16{&select_runs, own::select_group_bytes<Bf16>, own::pack_select_x<Bf16>,
                                  own::select_units<Bf16>};
  return dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
