// The row of forward_wgmma.
#include <algorithm>

#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Clocks of a multiprocessor per K tile, by tile, for 16-bit and 8-bit operands, and per tile for its first
// copies and stores. A box of the residual is awaited before the next one is requested.
constexpr double kKTileClocks[2][semi24::kTileCount] = {{2520, 1840, 1110, 750}, {2650, 1950, 1060, 700}},
                 kTileClocks = 3700, kResidualClocks = 1000;
constexpr double kMemoryShare = 0.7;  // fraction of the DRAM rate reached with few stages in flight

bool promotes(const LinearProblem&) { return false; }
bool promotes(const ScaledLinearProblem& p) { return p.dtype == DType::f8e4m3 && !p.fast_accum; }
bool stores_by_tma(const LinearProblem&) { return true; }
bool stores_by_tma(const ScaledLinearProblem& p) { return p.out == DType::bf16; }

template <class V>
Refusal propose(const typename V::Problem& p, const plan::Machine& machine, Proposals<V>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (stores_by_tma(p) && p.rows % 8 != 0) return {"needs out features in multiples of 8, W has {}", p.rows};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device)) / kMemoryShare;
  for (int i = promotes(p) ? semi24::kFirstPromotedTile : 0; i < semi24::kTileCount; ++i) {
    const semi24::TileShape& tile = semi24::kTiles[i];
    const double tiles = tiles_of(p.rows, tile.rows) * tiles_of(p.m, tile.tokens);
    if (tiles >= 2147483648.0) return "counts tiles in 31 bits, and there are more";
    const double boxes = p.residual ? tile.rows / 128 * (tile.tokens / 32) : 0;
    const double clocks = tiles_of(p.cols, k_tile_of(p)) * kKTileClocks[is_scaled(p.dtype)][i] + kTileClocks +
                          boxes * kResidualClocks;
    const double rounds = tiles_of(static_cast<std::int64_t>(tiles), std::max(device.multiprocessors, 1));
    out.add({{i}, kLaunchUs + std::max(memory, 1e6 * rounds * clocks / device.clock_hz), 0});
  }
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const Semi24Product& product) { return sm90_semi24_wgmma(product, schedule.variant); });
}

}  // namespace

Row<Semi24Linear> sm90_wgmma() { return {"sm90_wgmma", Placement::cuda, propose<Semi24Linear>, launch}; }
Row<Semi24Scaled> sm90_scaled_wgmma() {
  return {"sm90_wgmma", Placement::cuda, propose<Semi24Scaled>, launch};
}

}  // namespace sparseloom::kernels::cuda::semi24_rows

#endif
