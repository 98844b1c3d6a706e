// Chooses the method, the tile and the cluster of sm90_decode.
#include "kernels/bsr_linear/sm90/decode/schedule.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "core/check.h"
#include "kernels/bsr_linear/sm90/decode/entry.h"

namespace sparseloom::kernels::cuda::decode90 {
namespace {

using core::ceil_div;

/// Thread blocks of a cluster. It is the smallest size that evens out the strips, where the heaviest strip
/// counts as four average ones. A cluster's two barriers and its reads of other thread blocks' sums count as
/// 10 to 20 KB of W.
int cluster_of(const std::array<int, 4>& counts, std::int64_t strips, double strip_bytes) {
  constexpr std::int64_t kHeaviest = 4;
  constexpr double kExchangeBytes[] = {0, 10e3, 13e3, 20e3};
  int best = 1;
  double best_bytes = std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::int64_t most = std::max(ceil_div(strips, counts[i]), kHeaviest);
    const double bytes = static_cast<double>(most) * strip_bytes / (1 << i) + kExchangeBytes[i];
    if (bytes >= best_bytes) continue;
    best = 1 << i;
    best_bytes = bytes;
  }
  return best;
}

/// Thread blocks of a cluster, which is also the number of ranges that the columns are cut into, or 0 if none
/// fits. It minimises the time to move X and sums: X, again in every pass, comes through a multiprocessor's
/// port at 52 bytes per clock, and sums come from other thread blocks at 14.
int x_in_shared_cluster_of(const std::array<int, 4>& counts, int tokens, std::int64_t groups,
                           std::int64_t block_rows, std::int64_t cols) {
  constexpr double kXRate = 52, kSumRate = 14;
  const std::int64_t sum_bytes = std::int64_t{tokens} * 16 * 4;  // of a block row
  int best = 0;
  double best_clocks = std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < counts.size(); ++i) {
    const std::int64_t x_bytes = x_in_shared::range_of(cols, 1 << i) * (tokens * 2);
    if (counts[i] == 0 || x_bytes > x_in_shared_bytes(tokens)) continue;
    const std::int64_t each = ceil_div(block_rows, x_in_shared::clusters_of(counts[i], groups, block_rows)),
                       passes = ceil_div(each, x_in_shared::kPassBlockRows);
    const double sums = static_cast<double>(each * sum_bytes) * (1 - 1.0 / (1 << i));
    const double clocks = static_cast<double>(passes * x_bytes) / kXRate + sums / kSumRate;
    if (clocks >= best_clocks) continue;
    best = 1 << i;
    best_clocks = clocks;
  }
  return best;
}

}  // namespace

Schedule schedule_of(const Problem& p, const plan::Machine& machine) {
  const std::int64_t block_rows = ceil_div(p.rows, p.block.rows);
  Schedule schedule;
  if (p.block == BlockShape{16, 16}) {  // X in groups of at most 32 tokens
    const int tokens = p.m <= 8 ? 8 : p.m <= 16 ? 16 : 32;
    schedule.method = Method::decode_x_in_shared;
    schedule.tile_m = tokens, schedule.tile_n = schedule.tile_k = 16;
    schedule.cluster =
        x_in_shared_cluster_of(machine.clusters, tokens, ceil_div(p.m, tokens), block_rows, p.cols);
    return schedule;
  }
  schedule.method = Method::decode;
  schedule.tile_m = p.m <= 8 ? 8 : p.m <= 16 ? 16 : p.m <= 32 ? 32 : 64;
  schedule.tile_n = 32, schedule.tile_k = p.block.cols == 32 ? 32 : 64;
  const std::int64_t strips = block_rows * std::max(p.block.rows / 32, 1);
  const std::int64_t values_bytes = p.blocks * p.block.rows * p.block.cols * 2;
  schedule.cluster =
      cluster_of(machine.clusters, strips, static_cast<double>(values_bytes) / static_cast<double>(strips));
  return schedule;
}

}  // namespace sparseloom::kernels::cuda::decode90
