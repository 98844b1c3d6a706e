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

// By tile, clocks of a stage and of a dense unit (TilesPass), and the fixed time of a call in us.
constexpr double kStageClocks[] = {800, 480, 317}, kDenseClocks[] = {375, 436, 250}, kFixedUs = 3.7;
constexpr double kMemoryShare = 0.72;  // fraction of the DRAM rate reached with few stages in flight

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<TilesLinear>& out) {
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.rows % 8 != 0) return {"needs out features in multiples of 8, W has {}", p.rows};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device)) / kMemoryShare;
  for (int i = 0; i < tiles::kTileCount; ++i) {
    const tiles::TileShape& tile = tiles::kTiles[i];
    const auto of = [](std::int64_t size, int side) { return static_cast<double>((size + side - 1) / side); };
    if (of(p.rows, tile.rows) * of(p.m, tile.tokens) >= 2147483648.0)
      return "counts tiles in 31 bits, and there are more";
    const std::int64_t places = machine.cuda.multiprocessors;
    const TilesPass pass{tile.rows, tile.tokens, 1, places, kStageClocks[i], kDenseClocks[i]};
    out.add({{i}, kFixedUs + std::max(memory, pass_us(p, device, pass)), 0});
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
