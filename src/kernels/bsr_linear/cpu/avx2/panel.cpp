// avx2_panel: fp32 FMA on 256-bit vectors; 16-bit inputs are widened while packing.
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
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/bsr_linear/cpu/generic/product-inl.h"
// clang-format on

constexpr int kDepthStep = 1;
struct Product : FloatProduct {
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
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
#include "kernels/bsr_linear/cpu/generic/outer_few-inl.h"
// clang-format on

// Blocks of 8 columns fill an AVX2 vector, so half pieces do not occur.
cpu::OuterFunction choose_outer(int vectors, bool) { return outer_of<WholePiece>(vectors); }
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs panel_runs{"avx2_panel"};
const PanelOps kAvx2Panel = {
    &panel_runs,      avx2::kLanes,       avx2::kDepthStep,       nullptr,
    avx2::pack_panel, avx2::choose_strip, avx2::pack_columns,     avx2::choose_outer,
    avx2::spin,       avx2::pack_rows,    avx2::pack_column_rows, avx2::outer_few<avx2::WholePiece>};
}  // namespace sparseloom::kernels::cpu

#endif
