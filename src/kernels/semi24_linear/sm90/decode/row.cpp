// The row of decode.
#include <algorithm>

#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm90/decode/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

constexpr int kMostTokens = 64;
// Clocks of a multiprocessor: per K tile, and per further thread block of a cluster.
constexpr double kKTileClocks = 500, kRankClocks = 900;
// The fixed time of a call beside the stream and kLaunchUs, by instance (kDecodeTokens): the first stages of
// the ring and the last sums. Without it, predictions of calls of 5 to 9 us were .66 to .9 of their times.
constexpr double kStartUs[] = {1.3, 1.5, 3};

double start_us(std::int64_t tokens) {
  int instance = 0;
  while (semi24::kDecodeTokens[instance] < tokens) ++instance;
  return kLaunchUs + kStartUs[instance];
}

template <class V>
Refusal propose(const typename V::Problem& p, const plan::Machine& machine, Proposals<V>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (const Refusal why = refuse_on_hopper(p, machine)) return why;
  if (p.m > kMostTokens) return {"supports at most {} tokens, the call has {}", kMostTokens, p.m};
  const Device device(machine);
  const double memory = us(memory_seconds(bytes_of(p), device)),
               tiles = tiles_of(p.rows, semi24::kDecodeRows), k_tiles = tiles_of(p.cols, k_tile_of(p));
  for (int ranks = 1, log2 = 0; ranks <= semi24::kMostRanks; ranks *= 2, ++log2) {
    if (ranks > k_tiles || (ranks > 1 && machine.clusters[static_cast<std::size_t>(log2)] <= 0)) break;
    const double places =
        ranks > 1 ? machine.clusters[static_cast<std::size_t>(log2)] : device.multiprocessors;
    const double rounds = tiles_of(static_cast<std::int64_t>(tiles), std::max(static_cast<int>(places), 1));
    const double stream = 1e6 * rounds * k_tiles / ranks * kKTileClocks / device.clock_hz;
    out.add({{ranks},
             start_us(p.m) + std::max(memory, stream) + 1e6 * (ranks - 1) * kRankClocks / device.clock_hz,
             0});
  }
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule& schedule, const Executor&) {
  return launch_on_device(
      args, [&](const Semi24Product& product) { return sm90_semi24_decode(product, schedule.variant); });
}

}  // namespace

Row<Semi24Linear> sm90_decode() { return {"sm90_decode", Placement::cuda, propose<Semi24Linear>, launch}; }
Row<Semi24Scaled> sm90_scaled_decode() {
  return {"sm90_decode", Placement::cuda, propose<Semi24Scaled>, launch};
}

}  // namespace sparseloom::kernels::cuda::semi24_rows

namespace sparseloom::kernels::cuda {

int sm90_semi24_decode(const Semi24Product& product, int ranks) noexcept {
  using Entry = int (*)(const Semi24Product&, int) noexcept;
  static constexpr Entry kBf16[] = {semi24::decode_bf16_16, semi24::decode_bf16_32, semi24::decode_bf16_64};
  static constexpr Entry kF16[] = {semi24::decode_f16_16, semi24::decode_f16_32, semi24::decode_f16_64};
  static constexpr Entry kI8[] = {semi24::decode_i8_16, semi24::decode_i8_32, semi24::decode_i8_64};
  static constexpr Entry kE4m3[] = {semi24::decode_e4m3_16, semi24::decode_e4m3_32, semi24::decode_e4m3_64};
  int instance = 0;
  while (instance < 3 && product.args.m > semi24::kDecodeTokens[instance]) ++instance;
  if (instance == 3) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[instance](product, ranks);
    case DType::f16: return kF16[instance](product, ranks);
    case DType::i8: return kI8[instance](product, ranks);
    case DType::f8e4m3: return kE4m3[instance](product, ranks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda

#endif
