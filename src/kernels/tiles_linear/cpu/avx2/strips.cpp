// avx2_tiles, avx2_tiles_dx: fp32 FMA on 256-bit vectors; 16-bit operands are widened in L1.
#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bsr_linear/cpu/stream.h"
#include "kernels/semi24_linear/cpu/lanes_of_pairs.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"
#include "kernels/tiles_linear/cpu/ops.h"
#include "sparseloom/tiles.h"

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
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bsr_linear/cpu/generic/next_strip-inl.h"
#include "kernels/bsr_linear/cpu/generic/panel-inl.h"
#include "kernels/semi24_linear/cpu/generic/add_row-inl.h"
#include "kernels/semi24_linear/cpu/generic/strip_of-inl.h"
#include "kernels/tiles_linear/cpu/generic/units-inl.h"
#include "kernels/tiles_linear/cpu/generic/few_tokens-inl.h"
#include "kernels/tiles_linear/cpu/generic/strips-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs runs{"avx2_tiles"}, dx_runs{"avx2_tiles_dx"};

static constexpr PanelOps ops_of(Runs& counted) {
  PanelOps ops{};
  ops.runs = &counted, ops.lanes = avx2::kLanes, ops.depth_step = avx2::kDepthStep;
  ops.pack = avx2::pack_panel, ops.strip = avx2::choose_tiles_strips;
  return ops;
}
const PanelOps kAvx2Tiles = ops_of(runs), kAvx2TilesDx = ops_of(dx_runs);
}  // namespace sparseloom::kernels::cpu

#endif
