// The row of fp32_ffma.
#include <algorithm>
#include <cmath>

#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm80/entries.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Instructions for two groups of W, forward and dX: per group and per token, and how many a multiprocessor of
// an H100 executed per clock. Then the fraction of the DRAM rate that one token reached there.
constexpr double kGroupSlots[2] = {12, 20}, kTokenSlots[2] = {17, 5}, kSlotsPerClock[2] = {1.3, 0.74},
                 kMemoryShare[2] = {0.95, 0.85};
constexpr double kClusterUs = 0.8;
// The fraction of the shorter of memory and compute time that the longer one does not hide with several
// tokens.
constexpr double kExposed = 0.5;
// Columns of W per pass of forward's thread block, two groups per thread.
constexpr int kTurnColumns = 1024;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
  if (p.direction == Direction::dw) return "supports forward and dX only, the direction is dw";
  if (p.dtype != DType::f32) return {"multiplies f32 only, the dtype is {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (p.m > semi24_ffma::kMostTokens)
    return {"supports at most {} tokens, the call has {}", semi24_ffma::kMostTokens, p.m};
  if (p.cols % 8 != 0) return {"needs in features in multiples of 8, W has {}", p.cols};
  const bool dx = p.direction == Direction::dx;
  if (dx && p.rows % 4 != 0) return {"needs out features in multiples of 4, W has {}", p.rows};
  if (!p.aligned) return "needs operands whose rows lie at multiples of 16 bytes";
  const Device device(machine);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const double tokens_bytes = 4 * static_cast<double>(p.m) * (rows + cols),
               stored = rows * cols * (2 + 0.125);
  // If L2 holds W, it serves the second and later tiles of tokens, at some three times the DRAM rate.
  const double again = stored <= static_cast<double>(device.l2_bytes) ? 1.0 / 3 : 1;
  // A thread block waits for the threads that have one more pass than the others.
  const double turns = cols / kTurnColumns, idle = dx || turns <= 1 ? 1 : std::ceil(turns) / turns;
  for (int i = 0; i < semi24_ffma::kTokensCount; ++i) {
    const double tile_tokens = semi24_ffma::kTokens[i], tiles = tiles_of(p.m, semi24_ffma::kTokens[i]);
    const double weights = stored * (1 + (tiles - 1) * again);
    const double memory = us(memory_seconds(weights + tokens_bytes, device)) / kMemoryShare[dx];
    const double slots =
        idle * tiles * rows * cols / 4 * (kGroupSlots[dx] / 2 + tile_tokens * kTokenSlots[dx] / 2) / 32;
    for (int log2 = 0; log2 < (dx ? 4 : 1); ++log2) {
      const int ranks = 1 << log2, clusters = machine.clusters[static_cast<std::size_t>(log2)];
      if (ranks > 1 && clusters <= 0) break;
      // dX has few thread blocks; forward has one per four outputs. Some four of eight warps fill a
      // multiprocessor.
      const double blocks = dx ? tiles_of(p.cols, semi24_ffma::kDxInputs) * tiles * ranks
                               : tiles_of(p.rows, semi24_ffma::kForwardRows) * tiles / 2;
      const double busy = std::min(1.0, blocks / (2.0 * std::max(device.multiprocessors, 1)));
      const double compute = us(slots / (kSlotsPerClock[dx] * device.clocks() * busy)),
                   reading = memory / std::max(busy, 0.2);
      const double exposed = p.m > 1 ? kExposed * std::min(reading, compute) : 0;
      out.add({{i * 4 + log2},
               kLaunchUs + std::max(reading, compute) + exposed + (ranks > 1 ? kClusterUs : 0),
               0});
    }
  }
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return args.product.direction == Direction::dx
             ? sm80_semi24_ffma_dx(args.product, args.view, schedule.variant / 4, 1 << schedule.variant % 4)
             : sm80_semi24_ffma_forward(args.product, args.view, schedule.variant / 4);
}

}  // namespace

Row<Semi24Linear> sm80_ffma() { return {"sm80_ffma", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::semi24_rows

#endif
