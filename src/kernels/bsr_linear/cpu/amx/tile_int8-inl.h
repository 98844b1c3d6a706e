// int8's TileOps on top of the tile instructions, as in tile-inl.h. TDPBSSD multiplies signed by signed, so x
// needs no offset as in avx512_vnni/panel.cpp.

using Element = std::int8_t;
constexpr int kPerCell = 4;
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void product() {
  tile_dot_int8<kSums, kA, kB>();
}

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/bsr_linear/cpu/avx512/pairs-inl.h"
#include "kernels/bsr_linear/cpu/amx/rows-inl.h"
#include "kernels/bsr_linear/cpu/amx/write_int8-inl.h"
#include "kernels/bsr_linear/cpu/amx/strip-inl.h"
#include "kernels/bsr_linear/cpu/amx/configure-inl.h"
// clang-format on

constexpr int kDepthStep = kPerCell;
struct Product {
  [[gnu::always_inline]] static Vec prepare(Vec cell) { return cell; }
};
#include "kernels/bsr_linear/cpu/generic/pack-inl.h"

constinit Runs runs{"amx_int8_tile"};
constexpr cpu::TileOps kOps = {&runs, kPerCell, begin, end, pack_panel, choose_strip, nullptr, nullptr, spin};
