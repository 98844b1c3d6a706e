// The row of forward_mma.
#include <algorithm>
#include <cmath>

#include "kernels/tiles_linear/rows.h"
#include "kernels/tiles_linear/sm80/forward_mma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {

int sm80_tiles_mma(const TilesProduct& product, int tile) noexcept {
  using Entry = int (*)(const TilesProduct&) noexcept;
  static constexpr Entry kBf16[tiles_mma::kTileCount] = {
      tiles_mma::forward_bf16_128x64, tiles_mma::forward_bf16_64x32, tiles_mma::forward_bf16_32x16};
  static constexpr Entry kF16[tiles_mma::kTileCount] = {
      tiles_mma::forward_f16_128x64, tiles_mma::forward_f16_64x32, tiles_mma::forward_f16_32x16};
  if (tile < 0 || tile >= tiles_mma::kTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product);
    case DType::f16: return kF16[tile](product);
    default: return cudaErrorInvalidValue;
  }
}

namespace tiles_rows {
namespace {

// Those of semi24's forward_mma, of which a K tile is one of 2:4 units; a dense one has twice the bytes and
// products.
constexpr double kLatencyClocks = 2200, kKTileClocks = 1250;
constexpr double kTileClocks = 3700;    // per tile its first copies and stores, as of forward_wgmma
constexpr int kAtOnce = 2;              // thread blocks that alternate
constexpr int kMostTokenTiles = 65535;  // most token tiles of a grid

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<TilesLinear>& out) {
  if (const Refusal why = refuse(p)) return why;
  constexpr std::int64_t kMostSize = (std::int64_t{1} << 31) - 512;
  if (p.rows > kMostSize || p.cols > kMostSize)
    return {"counts rows and columns of W in 31 bits, W is [{}, {}]", p.rows, p.cols};
  if (constexpr std::int64_t kMost = kMostTokenTiles * std::int64_t{tiles_mma::kTiles[0].tokens}; p.m > kMost)
    return {"supports at most {} tokens, the call has {}", kMost, p.m};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device));
  const TilesCounts counts = counts_of(p);
  const double share = (2 * static_cast<double>(counts.dense) + static_cast<double>(counts.halves)) /
                       static_cast<double>(counts.all);
  for (int i = 0; i < tiles_mma::kTileCount; ++i) {
    const tiles_mma::TileShape& tile = tiles_mma::kTiles[i];
    const auto of = [](std::int64_t size, int side) { return static_cast<double>((size + side - 1) / side); };
    const double token_tiles = of(p.m, tile.tokens);
    if (token_tiles > kMostTokenTiles) continue;
    const double blocks = of(p.rows, tile.rows) * token_tiles, sms = std::max(device.multiprocessors, 1);
    const double rounds = std::ceil(blocks / (sms * kAtOnce));
    const double clocks =
        kTileClocks * rounds +
        of(p.cols, tile.depth) * std::max(kLatencyClocks * rounds, share * kKTileClocks * blocks / sms);
    out.add({{i}, kLaunchUs + std::max(1e6 * clocks / device.clock_hz, memory), 0});
  }
  return {};
}

int launch(const TilesLinear::Args& args, const TilesLinear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const TilesProduct& product) { return sm80_tiles_mma(product, schedule.variant); });
}

}  // namespace

Row<TilesLinear> sm80_mma() { return {"sm80_mma", Placement::cuda, propose, launch}; }

}  // namespace tiles_rows
}  // namespace sparseloom::kernels::cuda

#endif
