// The row of forward_mma.
#include <algorithm>

#include "kernels/semi24_linear/cuda/rows.h"
#include "kernels/semi24_linear/sm80/forward_mma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Dense flops per clock and multiprocessor that a tile reaches, and the share of the memory's rate.
constexpr double kFlops = 880, kMemoryShare = 0.5;
constexpr double kMisaligned = 4;  // times slower, since elements are copied one by one

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
  if (const Refusal why = refuse(p)) return why;
  constexpr std::int64_t kMostSize = (std::int64_t{1} << 31) - 512;
  if (p.rows > kMostSize || p.cols > kMostSize)
    return {"counts rows and columns of W in 31 bits, W is [{}, {}]", p.rows, p.cols};
  const Device device(machine);
  for (int i = 0; i < semi24_mma::kTileCount; ++i) {
    const semi24_mma::TileShape& tile = semi24_mma::kTiles[i];
    const double tokens = tiles_of(p.m, tile.tokens) * tile.tokens;
    if (tokens / tile.tokens > 65535) continue;
    // W is read once for each tile of tokens.
    const double flops = 2 * tokens * static_cast<double>(p.rows) * static_cast<double>(p.cols);
    const double work = std::max(us(flops / (kFlops * device.clocks())),
                                 us(memory_seconds(bytes_of(p), device)) / kMemoryShare);
    const double blocks = tiles_of(p.rows, tile.rows) * tokens / tile.tokens;
    const double idle = std::max(1.0, device.multiprocessors / blocks);
    const bool fast = p.aligned && p.cols % 16 == 0;
    out.add({{i}, kLaunchUs + work * idle * (fast ? 1 : kMisaligned), 0});
  }
  if (p.m > std::int64_t{65535} * semi24_mma::kTiles[0].tokens)
    return {"multiplies at most {} tokens, the call has {}", 65535 * semi24_mma::kTiles[0].tokens, p.m};
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const Semi24Product& product) { return sm80_semi24_mma(product, schedule.variant); });
}

}  // namespace

Row<Semi24Linear> sm80_mma() { return {"sm80_mma", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::semi24_rows

#endif
