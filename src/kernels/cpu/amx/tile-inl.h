// Everything of bf16's TileOps over a tile vocabulary. Included inside a region, after that vocabulary;
// amx/product.cpp has the machine's, a test the emulated one.

using Element = std::uint16_t;
constexpr int kPerCell = 2;
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void product() {
  tile_dot<kSums, kA, kB>();
}

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/generic/activation-inl.h"
#include "kernels/cpu/avx512/pairs-inl.h"
#include "kernels/cpu/amx/rows-inl.h"
#include "kernels/cpu/amx/pairs-inl.h"
#include "kernels/cpu/amx/write-inl.h"
#include "kernels/cpu/amx/strip-inl.h"
#include "kernels/cpu/amx/outer-inl.h"
#include "kernels/cpu/amx/configure-inl.h"
// clang-format on

void pack_panel(const cpu::PanelJob& job, const cpu::Pack& pack) { cpu::kAvx512Bf16Panel.pack(job, pack); }

constexpr cpu::TileOps kOps = {kPerCell,     begin,        end,        pack_panel,
                               choose_strip, choose_outer, pack_tiles, spin};
