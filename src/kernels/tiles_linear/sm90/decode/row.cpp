// The row of decode.
#include <algorithm>

#include "kernels/tiles_linear/rows.h"
#include "kernels/tiles_linear/sm90/decode/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {

int sm90_tiles_decode(const TilesProduct& product, int ranks) noexcept {
  using Entry = int (*)(const TilesProduct&, int) noexcept;
  static constexpr Entry kBf16[] = {tiles::decode_bf16_16, tiles::decode_bf16_32, tiles::decode_bf16_64};
  static constexpr Entry kF16[] = {tiles::decode_f16_16, tiles::decode_f16_32, tiles::decode_f16_64};
  int instance = 0;
  while (instance < 3 && product.args.m > tiles::kDecodeTokens[instance]) ++instance;
  if (instance == 3) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[instance](product, ranks);
    case DType::f16: return kF16[instance](product, ranks);
    default: return cudaErrorInvalidValue;
  }
}

namespace tiles_rows {
namespace {

constexpr int kMostTokens = 64;
// Clocks of a thread block: per 64 columns, and per further one of a cluster.
constexpr double kKTileClocks = 200, kRankClocks = 900;
// The fixed time of a call beside the stream and kLaunchUs, by instance (kDecodeTokens), as of semi24's
// decode.
constexpr double kStartUs[] = {1.3, 1.5, 3};
// Thread blocks that share a multiprocessor.
constexpr int kBlocks = 2;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<TilesLinear>& out) {
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.m > kMostTokens) return {"supports at most {} tokens, the call has {}", kMostTokens, p.m};
  int instance = 0;
  while (tiles::kDecodeTokens[instance] < p.m) ++instance;
  const Device device(machine);
  const std::int64_t row_tiles = (p.rows + tiles::kDecodeRows - 1) / tiles::kDecodeRows,
                     columns = (p.cols + 63) / 64;
  const double memory = us(memory_seconds(bytes_of(p), device));
  for (int ranks = 1, log2 = 0; ranks <= tiles::kMostRanks; ranks *= 2, ++log2) {
    const int clusters = machine.clusters[static_cast<std::size_t>(log2)];
    if (ranks > columns || (ranks > 1 && clusters <= 0)) break;
    const std::int64_t places =
        std::max(kBlocks * (ranks > 1 ? clusters : static_cast<int>(device.multiprocessors)), 1);
    const double rounds = static_cast<double>((row_tiles + places - 1) / places);
    const double stream =
        1e6 * rounds * static_cast<double>(columns) / ranks * kKTileClocks / device.clock_hz;
    out.add({{ranks},
             kLaunchUs + kStartUs[instance] + std::max(memory, stream) +
                 1e6 * (ranks - 1) * kRankClocks / device.clock_hz,
             0});
  }
  return {};
}

int launch(const TilesLinear::Args& args, const TilesLinear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const TilesProduct& product) { return sm90_tiles_decode(product, schedule.variant); });
}

}  // namespace

Row<TilesLinear> sm90_decode() { return {"sm90_decode", Placement::cuda, propose, launch}; }

}  // namespace tiles_rows
}  // namespace sparseloom::kernels::cuda

#endif
