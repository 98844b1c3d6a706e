// The row of dx_expanded.
#include <algorithm>

#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm90/dx_expanded/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Clocks of a multiprocessor of an H100, by tile: per kDepth rows of W, and per tile for its first copies and
// last stores.
constexpr double kStepClocks[semi24_dx::kTileCount] = {950, 950, 1950},
                 kTileClocks[semi24_dx::kTileCount] = {2500, 4000, 4500};
// A cluster's barriers, and the sums of each further thread block.
constexpr double kClusterClocks = 700, kRankClocks = 150;
constexpr double kMemoryShare = 0.8;  // fraction of the DRAM rate
constexpr const char* kCaveat = "zeros of W between stored elements are multiplied, so a NaN in dY spreads";

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
  if (p.direction != Direction::dx) return {"supports dX only, the direction is {}", name_of(p.direction)};
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"multiplies bf16 and f16 only, the dtype is {}", name_of(p.dtype)};
  if (p.strict) return "strict forbids multiplying by zeros that are not stored";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.cols % semi24_dx::kInputsMultiple != 0)
    return {"needs in features in multiples of {}, W has {}", semi24_dx::kInputsMultiple, p.cols};
  if (p.rows % 8 != 0) return {"needs out features in multiples of 8, W has {}", p.rows};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device)) / kMemoryShare;
  const double depth = tiles_of(p.rows, semi24_dx::kDepth);
  for (int i = 0; i < semi24_dx::kTileCount; ++i) {
    const semi24_dx::TileShape& tile = semi24_dx::kTiles[i];
    const double token_tiles = tiles_of(p.m, tile.tokens),
                 tiles = tiles_of(p.cols, tile.inputs) * token_tiles;
    if (token_tiles > 65535 || tiles * semi24_dx::kMostRanks >= 2147483648.0) continue;
    for (int log2 = 0; log2 < 4; ++log2) {
      const int ranks = 1 << log2;
      const double places =
          ranks > 1 ? machine.clusters[static_cast<std::size_t>(log2)] : std::max(device.multiprocessors, 1);
      if (ranks > depth || places <= 0 || (ranks > 1 && !tile.divides)) break;
      const double rounds = tiles_of(static_cast<std::int64_t>(tiles), static_cast<int>(places));
      const double meetings = ranks > 1 ? kClusterClocks + ranks * kRankClocks : 0;
      const double clocks =
          rounds * (std::max(depth / ranks, 1.0) * kStepClocks[i] + kTileClocks[i] + meetings);
      out.add({{i * 4 + log2}, kLaunchUs + std::max(memory, 1e6 * clocks / device.clock_hz), 0});
    }
  }
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return sm90_semi24_dx(args.product, args.view, schedule.variant / 4, 1 << schedule.variant % 4);
}

}  // namespace

Row<Semi24Linear> sm90_dx() { return {"sm90_dx", Placement::cuda, propose, launch, kCaveat}; }

}  // namespace sparseloom::kernels::cuda::semi24_rows

namespace sparseloom::kernels::cuda {

int sm90_semi24_dx(const MatmulArgs& args, const Semi24View& w, int tile, int ranks) noexcept {
  using namespace semi24_dx;
  using Entry = int (*)(const MatmulArgs&, const Semi24View&, int) noexcept;
  static constexpr Entry kBf16[kTileCount] = {dx_bf16_16, dx_bf16_64, dx_bf16_128};
  static constexpr Entry kF16[kTileCount] = {dx_f16_16, dx_f16_64, dx_f16_128};
  if (tile < 0 || tile >= kTileCount || args.direction != Direction::dx) return cudaErrorInvalidValue;
  if (args.dtype == DType::bf16) return kBf16[tile](args, w, ranks);
  if (args.dtype == DType::f16) return kF16[tile](args, w, ranks);
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
