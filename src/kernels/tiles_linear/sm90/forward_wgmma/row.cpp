// The row of forward_wgmma.
#include <algorithm>

#include "kernels/tiles_linear/rows.h"
#include "kernels/tiles_linear/sm90/forward_wgmma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {

int sm90_tiles_wgmma(const TilesProduct& product, int tile) noexcept {
  using Entry = int (*)(const TilesProduct&) noexcept;
  static constexpr Entry kBf16[tiles::kTileCount] = {tiles::forward_bf16_256x128, tiles::forward_bf16_128x128,
                                                     tiles::forward_bf16_128x64};
  static constexpr Entry kF16[tiles::kTileCount] = {tiles::forward_f16_256x128, tiles::forward_f16_128x128,
                                                    tiles::forward_f16_128x64};
  if (tile < 0 || tile >= tiles::kTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product);
    case DType::f16: return kF16[tile](product);
    default: return cudaErrorInvalidValue;
  }
}

namespace tiles_rows {
namespace {

// Clocks of a multiprocessor per 64 columns, by tile: of a dense unit of 64 rows, of which one of 2:4 takes
// half, beside all units, and the least, since copies take as long. Per tile its first copies and stores.
// Fitted to an H200 (2026-12-01): 8192 x 4096 x 4096, all dense, all 2:4 and .4 dense with .5 2:4.
constexpr double kDenseClocks[] = {370, 450, 290}, kKTileClocks = 90, kLeastClocks[] = {1200, 830, 555},
                 kTileClocks = 3700;
constexpr double kMemoryShare = 0.7;  // fraction of the DRAM rate reached with few stages in flight

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<TilesLinear>& out) {
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.rows % 8 != 0) return {"needs out features in multiples of 8, W has {}", p.rows};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device)) / kMemoryShare;
  const TilesCounts counts = counts_of(p);
  // Dense ones and those of 2:4, which take half of the time, over all.
  const double share = (static_cast<double>(counts.dense) + static_cast<double>(counts.halves) / 2) /
                       static_cast<double>(counts.all);
  const double columns = static_cast<double>((p.cols + 63) / 64);
  for (int i = 0; i < tiles::kTileCount; ++i) {
    const tiles::TileShape& tile = tiles::kTiles[i];
    const auto of = [](std::int64_t size, int side) { return static_cast<double>((size + side - 1) / side); };
    const double all = of(p.rows, tile.rows) * of(p.m, tile.tokens);
    if (all >= 2147483648.0) return "counts tiles in 31 bits, and there are more";
    const double of_columns = kKTileClocks + tile.rows / 64 * share * kDenseClocks[i];
    const double clocks = columns * std::max(of_columns, kLeastClocks[i]) + kTileClocks;
    const double rounds = of(static_cast<std::int64_t>(all), std::max(device.multiprocessors, 1));
    out.add({{i}, kLaunchUs + std::max(memory, 1e6 * rounds * clocks / device.clock_hz), 0});
  }
  return {};
}

int launch(const TilesLinear::Args& args, const TilesLinear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const TilesProduct& product) { return sm90_tiles_wgmma(product, schedule.variant); });
}

}  // namespace

Row<TilesLinear> sm90_wgmma() { return {"sm90_wgmma", Placement::cuda, propose, launch}; }

}  // namespace tiles_rows
}  // namespace sparseloom::kernels::cuda

#endif
