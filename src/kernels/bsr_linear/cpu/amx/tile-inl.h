// bf16's TileOps on top of the tile instructions. Included inside a region, after those instructions: the
// machine's (tiles.h) in amx/product.cpp, emulated ones in a test.

using Element = std::uint16_t;
constexpr int kPerCell = 2;
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void product() {
  tile_dot<kSums, kA, kB>();
}

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/bsr_linear/cpu/avx512/pairs-inl.h"
#include "kernels/bsr_linear/cpu/amx/rows-inl.h"
#include "kernels/bsr_linear/cpu/amx/pairs-inl.h"
#include "kernels/bsr_linear/cpu/amx/write-inl.h"
#include "kernels/bsr_linear/cpu/amx/strip-inl.h"
#include "kernels/bsr_linear/cpu/amx/outer-inl.h"
#include "kernels/bsr_linear/cpu/amx/configure-inl.h"
// clang-format on

void pack_panel(const cpu::PanelJob& job, const cpu::Pack& pack) { cpu::kAvx512Bf16Panel.pack(job, pack); }

constinit Runs runs{"amx_tile"};
constexpr cpu::TileOps kOps = {&runs,        kPerCell,     begin,      end, pack_panel,
                               choose_strip, choose_outer, pack_tiles, spin};
