// The row of forward_mma.
#include <algorithm>
#include <cmath>

#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm80/forward_mma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Clocks of a multiprocessor: between the K tiles of one thread block, and per K tile if kAtOnce thread
// blocks alternate. All tiles copy and multiply the same amount per K tile.
constexpr double kLatencyClocks = 2200, kKTileClocks = 1250;
constexpr int kAtOnce = 3;
constexpr int kMostTokenTiles = 65535;  // most token tiles of a grid
constexpr double kMisaligned = 4;       // factor, since elements are copied one by one

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
  if (const Refusal why = refuse(p)) return why;
  constexpr std::int64_t kMostSize = (std::int64_t{1} << 31) - 512;
  if (p.rows > kMostSize || p.cols > kMostSize)
    return {"counts rows and columns of W in 31 bits, W is [{}, {}]", p.rows, p.cols};
  if (constexpr std::int64_t kMost = kMostTokenTiles * std::int64_t{semi24_mma::kTiles[0].tokens};
      p.m > kMost)
    return {"supports at most {} tokens, the call has {}", kMost, p.m};
  const Device device(machine);
  for (int i = 0; i < semi24_mma::kTileCount; ++i) {
    const semi24_mma::TileShape& tile = semi24_mma::kTiles[i];
    const double token_tiles = tiles_of(p.m, tile.tokens);
    if (token_tiles > kMostTokenTiles) continue;
    const double blocks = tiles_of(p.rows, tile.rows) * token_tiles,
                 sms = std::max(device.multiprocessors, 1);
    const double clocks =
        tiles_of(p.cols, tile.depth) *
        std::max(kLatencyClocks * std::ceil(blocks / (sms * kAtOnce)), kKTileClocks * blocks / sms);
    const double work = std::max(1e6 * clocks / device.clock_hz, us(memory_seconds(bytes_of(p), device)));
    const bool fast = p.aligned && p.cols % 16 == 0;
    out.add({{i}, kLaunchUs + work * (fast ? 1 : kMisaligned), 0});
  }
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const Semi24Product& product) { return sm80_semi24_mma(product, schedule.variant); });
}

}  // namespace

Row<Semi24Linear> sm80_mma() { return {"sm80_mma", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::semi24_rows

namespace sparseloom::kernels::cuda {

int sm80_semi24_mma(const Semi24Product& product, int tile) noexcept {
  using Entry = int (*)(const Semi24Product&) noexcept;
  static constexpr Entry kBf16[semi24_mma::kTileCount] = {
      semi24_mma::forward_bf16_128x64, semi24_mma::forward_bf16_64x32, semi24_mma::forward_bf16_32x16};
  static constexpr Entry kF16[semi24_mma::kTileCount] = {
      semi24_mma::forward_f16_128x64, semi24_mma::forward_f16_64x32, semi24_mma::forward_f16_32x16};
  if (tile < 0 || tile >= semi24_mma::kTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product);
    case DType::f16: return kF16[tile](product);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda

#endif
