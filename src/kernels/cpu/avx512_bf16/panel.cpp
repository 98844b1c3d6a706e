// avx512bf16_panel: pairs of bf16 products by VDPBF16PS, summed in fp32. Worth it where that is twice the FMA's rate.
#if defined(__x86_64__)

#include "kernels/cpu/panel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/avx512_bf16/begin.h"
namespace {
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/generic/product-inl.h"
// clang-format on

constexpr int kDepthStep = 2;
struct Product : FloatProduct {
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(w));  // casts between vector types keep the bits
  }
};
// clang-format off
#include "kernels/cpu/generic/pack-inl.h"
#include "kernels/cpu/generic/pack_columns-inl.h"
#include "kernels/cpu/generic/next_strip-inl.h"
#include "kernels/cpu/generic/panel-inl.h"
#include "kernels/cpu/generic/outer-inl.h"
#include "kernels/cpu/avx512/half_pieces.h"
// clang-format on

cpu::OuterFunction choose_outer(int vectors, bool half_pieces) {
  return half_pieces ? outer_of<HalfPieces>(vectors) : outer_of<WholePiece>(vectors);
}
}  // namespace
#include "kernels/cpu/avx512_bf16/end.h"

namespace sparseloom::kernels::cpu {
const PanelOps kAvx512Bf16Panel = {avx512_bf16::kLanes,       avx512_bf16::kDepthStep,   true,
                                   avx512_bf16::pack_panel,   avx512_bf16::choose_strip, avx512_bf16::pack_columns,
                                   avx512_bf16::choose_outer, avx512_bf16::spin};
}  // namespace sparseloom::kernels::cpu

#endif
