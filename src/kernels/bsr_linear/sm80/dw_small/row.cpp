// The row of sm80_dw_small.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/dw_small/entry.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Only the machine code for sm_90 supports clusters; code compiled from the PTX of sm_80 does not.
int most_cluster(const Machine& machine) {
  int most = 1;
  while (machine.cuda.sm == 90 && most < dw_small::kMostCluster &&
         machine.clusters[static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(most)))] > 0)
    most *= 2;
  return most;
}

Refusal refusal(const Problem& p, const Machine& machine) {
  if (p.direction != Direction::dw) return "supports dw only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (const std::int64_t most = std::int64_t{most_cluster(machine)} * dw_small::kMostSlice; p.m > most)
    return {"supports at most {} tokens, the call has {}", most, p.m};
  // A tile is at least a 64th of a block.
  if (p.blocks >= std::int64_t{1} << 25)
    return {"counts tiles of blocks in 31 bits, and there are {} blocks", p.blocks};
  return {};
}

struct Fit {
  double start_us;              // the launch, the search, one copy and one store
  double tokens_us;             // additional time of 256 tokens per thread block
  double thread_block_us;       // fixed time per thread block of a multiprocessor
  double stored_share;          // fraction of the DRAM rate
  double narrow_stores;         // blocks of 16 columns and less are stored in short rows
  double read_bytes_per_clock;  // L2 to one multiprocessor
};
// Single thread blocks: from the sweeps of an H100 that docs/log names (2026-11-25). Clusters: from 38
// products of 268 to 3877 tokens on an H200 (2026-11-28), all of them within 1.3 times.
constexpr Fit kAlone{2.15, 1.45, 0, 0.74, 1.9, 18.6}, kClusters{3.89, 1, 1.09, 1, 1.36, 22.4};
// Element-wise copies: time per 16 tokens, and rate of the bytes read.
constexpr double kElementsUs = 0.5, kElementsBytesPerClock = 8;

double predict_us(const Problem& p, const dw_small::Tile& tile, int cluster, const Machine& machine) {
  if (p.blocks == 0) return kAlone.start_us;
  const Fit& fit = cluster > 1 ? kClusters : kAlone;
  const Device device(machine);
  // A tile reads dY of each block row of its blocks.
  const double block_rows = std::ceil(static_cast<double>(p.rows) / p.block.rows),
               tile_blocks = dw_small::blocks_of(tile, p.block);
  const double rows_of_blocks =
      std::min(tile_blocks, 1 + (tile_blocks - 1) * block_rows / static_cast<double>(p.blocks));
  const auto tiles = static_cast<double>(dw_small::thread_blocks(tile, p.block, p.blocks));
  const double read = tiles * (tile.columns + tile.rows * rows_of_blocks) * static_cast<double>(p.m) * 2;
  const double slice = dw_small::slice_of(p.m, cluster);
  const double by_elements =
      p.aligned ? 0 : kElementsUs * slice / 16 + us(read / (kElementsBytesPerClock * device.clocks()));
  return fit.start_us + fit.tokens_us * slice / 256 +
         fit.thread_block_us * tiles * cluster / device.multiprocessors + by_elements +
         us((p.block.cols <= 16 ? fit.narrow_stores : 1) * memory_seconds(bytes_of(p).stored, device) /
                fit.stored_share +
            read / (fit.read_bytes_per_clock * device.clocks()));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  Schedule schedule;
  schedule.warps = dw_small::kWarps;
  double least = std::numeric_limits<double>::infinity();
  for (int cluster = 1; cluster <= most_cluster(machine); cluster *= 2) {
    if (p.m > std::int64_t{cluster} * dw_small::kMostSlice) continue;
    const dw_small::Tile tile =
        dw_small::choose_tile(p.block, p.blocks, p.m, cluster, machine.cuda.multiprocessors);
    if (dw_small::thread_blocks(tile, p.block, p.blocks) * cluster >= std::int64_t{1} << 31) continue;
    const double predicted = predict_us(p, tile, cluster, machine);
    if (predicted >= least) continue;
    least = predicted;
    schedule.tile_m = tile.rows, schedule.tile_n = tile.columns, schedule.cluster = cluster;
  }
  out.add({schedule, least, 0});
  return {};
}

}  // namespace

Kernel sm80_dw_small_row() {
  return cuda_row("sm80_dw_small", propose,
                  [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                    return sm80_dw_small(args, schedule);
                  });
}

int sm80_dw_small(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const int cluster = schedule.cluster;
  const bool takes = args.direction == Direction::dw && schedule.tile_m > 0 && schedule.tile_n > 0 &&
                     cluster >= 1 && cluster <= dw_small::kMostCluster && (cluster & (cluster - 1)) == 0 &&
                     args.m >= 0 && args.m <= std::int64_t{cluster} * dw_small::kMostSlice;
  if (!takes) return cudaErrorInvalidValue;
  if (args.index.blocks == 0) return cudaSuccess;
  if (args.dtype == DType::bf16) return dw_small::launch_bf16(args, schedule);
  if (args.dtype == DType::f16) return dw_small::launch_f16(args, schedule);
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
