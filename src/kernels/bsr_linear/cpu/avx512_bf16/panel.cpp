// avx512bf16_panel: VDPBF16PS multiplies pairs of bf16 and sums them in fp32. It is faster if the CPU does
// that at twice the FMA's rate.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/bsr_linear/cpu/stream.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_bf16/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/bsr_linear/cpu/avx512/pairs-inl.h"
#include "kernels/bsr_linear/cpu/generic/product-inl.h"
// clang-format on

constexpr int kDepthStep = 2;
struct Product : FloatProduct {
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(w));  // casts of vector types keep the bits
  }
};
// clang-format off
#include "kernels/bsr_linear/cpu/generic/pack-inl.h"
#include "kernels/bsr_linear/cpu/generic/pack_columns-inl.h"
#include "kernels/bsr_linear/cpu/generic/pack_rows-inl.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bsr_linear/cpu/generic/next_strip-inl.h"
#include "kernels/bsr_linear/cpu/generic/panel-inl.h"
#include "kernels/bsr_linear/cpu/generic/choose_strip-inl.h"
#include "kernels/bsr_linear/cpu/generic/outer-inl.h"
#include "kernels/bsr_linear/cpu/avx512/half_pieces.h"
#include "kernels/bsr_linear/cpu/generic/outer_few-inl.h"
// clang-format on

// Transposes blocks of 8 x 8, which are two vectors each. The squares of pairs that transpose_blocks uses
// would be three quarters empty, which measured slower.
void transpose_eights(const std::uint16_t* values, const std::int32_t* slot, std::int64_t begin,
                      std::int64_t end, std::uint16_t* out) {
  alignas(64) std::uint16_t from[64];
  for (int i = 0; i < 64; ++i) from[i] = static_cast<std::uint16_t>(i % 8 * 8 + i / 8);
  const __m512i upper = _mm512_load_si512(from), lower = _mm512_load_si512(from + 32);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint16_t* const block = values + slot[i] * 64;
    __builtin_prefetch(values + slot[std::min(i + 8, end - 1)] * 64);
    const __m512i a = _mm512_loadu_si512(block), b = _mm512_loadu_si512(block + 32);
    _mm512_storeu_si512(out + i * 64, _mm512_permutex2var_epi16(a, upper, b));
    _mm512_storeu_si512(out + i * 64 + 32, _mm512_permutex2var_epi16(a, lower, b));
  }
}

void transpose_blocks(const std::uint16_t* values, const std::int32_t* slot, BlockShape block,
                      std::int64_t begin, std::int64_t end, std::uint16_t* out) {
  const std::int64_t bm = block.rows, bn = block.cols;
  if (bm == 8 && bn == 8) return transpose_eights(values, slot, begin, end, out);
  alignas(64) float scratch[2][kLanes * kLanes];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint16_t* const from = values + slot[i] * bm * bn;
    const std::uint16_t* const next = values + slot[std::min(i + 1, end - 1)] * bm * bn;
    auto* const to = reinterpret_cast<cpu::Cell*>(out + i * bm * bn);  // rows of bm / 2 cells
    // Interleave squares of 32 x 32 elements into pairs, then transpose the pairs.
    for (std::int64_t row = 0; row < bm; row += 2 * kLanes)
      for (std::int64_t column = 0; column < bn; column += 2 * kLanes) {
        pair_rows(from + row * bn + column, next + row * bn + column, bn, bm - row, bn - column, scratch[0],
                  scratch[1]);
        for (std::int64_t half = 0; half < 2 && column + half * kLanes < bn; ++half) {
          const std::int64_t first = column + half * kLanes;
          turn_cells(scratch[half], std::min<std::int64_t>(kLanes, bn - first),
                     std::min<std::int64_t>(kLanes, (bm - row) / 2), to + first * bm / 2 + row / 2, bm / 2);
        }
      }
  }
}

cpu::OuterFunction choose_outer(int vectors, bool half_pieces) {
  return half_pieces ? outer_of<HalfPieces>(vectors) : outer_of<WholePiece>(vectors);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs panel_runs{"avx512bf16_panel"};
const PanelOps kAvx512Bf16Panel = {&panel_runs,
                                   avx512_bf16::kLanes,
                                   avx512_bf16::kDepthStep,
                                   avx512_bf16::transpose_blocks,
                                   avx512_bf16::pack_panel,
                                   avx512_bf16::choose_strip,
                                   avx512_bf16::pack_columns,
                                   avx512_bf16::choose_outer,
                                   avx512_bf16::spin,
                                   avx512_bf16::pack_rows,
                                   avx512_bf16::pack_column_rows,
                                   avx512_bf16::outer_few<avx512_bf16::HalfPieces>};
}  // namespace sparseloom::kernels::cpu

#endif
