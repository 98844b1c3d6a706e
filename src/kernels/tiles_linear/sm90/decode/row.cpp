// The row of decode.
#include <algorithm>
#include <bit>

#include "kernels/tiles_linear/rows.h"
#include "kernels/tiles_linear/sm90/decode/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {

int sm90_tiles_decode(const TilesProduct& product, int tile, int ranks) noexcept {
  using Entry = int (*)(const TilesProduct&, int) noexcept;
  static constexpr Entry kBf16[tiles::kDecodeTileCount] = {
      tiles::decode_bf16_64x16,  tiles::decode_bf16_64x32,   tiles::decode_bf16_64x64,
      tiles::decode_bf16_128x64, tiles::decode_bf16_128x128, tiles::decode_bf16_256x128};
  static constexpr Entry kF16[tiles::kDecodeTileCount] = {
      tiles::decode_f16_64x16,  tiles::decode_f16_64x32,   tiles::decode_f16_64x64,
      tiles::decode_f16_128x64, tiles::decode_f16_128x128, tiles::decode_f16_256x128};
  if (tile < 0 || tile >= tiles::kDecodeTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product, ranks);
    case DType::f16: return kF16[tile](product, ranks);
    default: return cudaErrorInvalidValue;
  }
}

namespace tiles_rows {
namespace {

constexpr int kMostTokens = 4096;
// By tile, clocks of a stage and of a dense unit (TilesPass), and the fixed time of a call in us. Narrow
// tiles wait for W alone.
constexpr double kStageClocks[] = {310, 361, 260, 510, 715, 1200},
                 kDenseClocks[] = {0, 0, 250, 250, 436, 375}, kFixedUs[] = {3.1, 3.1, 5.1, 5.1, 6, 6};
constexpr double kMemoryShare = 0.83;  // fraction of the DRAM rate reached
constexpr int kRanksBits = 4;          // of a schedule's variant, below the tile

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<TilesLinear>& out) {
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.m > kMostTokens) return {"supports at most {} tokens, the call has {}", kMostTokens, p.m};
  const Device device(machine);
  const auto of = [](std::int64_t size, std::int64_t side) { return (size + side - 1) / side; };
  const double memory = us(memory_seconds(bytes_of(p), device)) / kMemoryShare;
  for (int i = 0; i < tiles::kDecodeTileCount; ++i) {
    const tiles::DecodeShape& tile = tiles::kDecodeTiles[i];
    // Narrow tiles would copy W once for each of many, and wide ones compute more tokens than there are.
    if (tile.tokens < std::min<std::int64_t>(p.m, 64) || (i > 0 && tiles::kDecodeTiles[i - 1].tokens >= p.m))
      continue;
    if (of(p.rows, tile.rows) * of(p.m, tile.tokens) * tiles::kMostRanks >= std::int64_t{1} << 31)
      return "counts tiles in 31 bits, and there are more";
    // Whole reductions of these tiles are forward_wgmma's.
    for (int ranks = tile.rows > 64 ? 2 : 1; ranks <= tiles::kMostRanks; ranks *= 2) {
      const int count = machine.clusters[static_cast<std::size_t>(std::countr_zero(unsigned(ranks)))];
      if (ranks > of(p.cols, 64) || (ranks > 1 && count <= 0)) break;
      const std::int64_t places = tile.at_once * (ranks > 1 ? count * ranks : machine.cuda.multiprocessors);
      // Clusters that wait for others took twice what rounds of thread blocks take.
      if (ranks > 1 && of(p.rows, tile.rows) * of(p.m, tile.tokens) * ranks > places) break;
      const TilesPass pass{tile.rows, tile.tokens, ranks, places, kStageClocks[i], kDenseClocks[i]};
      out.add({{i << kRanksBits | ranks}, kFixedUs[i] + std::max(memory, pass_us(p, device, pass)), 0});
    }
  }
  return {};
}

int launch(const TilesLinear::Args& args, const TilesLinear::Schedule& schedule, const Executor&) {
  return launch_on_device(args, [&](const TilesProduct& product) {
    return sm90_tiles_decode(product, schedule.variant >> kRanksBits,
                             schedule.variant & ((1 << kRanksBits) - 1));
  });
}

}  // namespace

Row<TilesLinear> sm90_decode() { return {"sm90_decode", Placement::cuda, propose, launch}; }

}  // namespace tiles_rows
}  // namespace sparseloom::kernels::cuda

#endif
