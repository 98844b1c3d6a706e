// Host side of kernel.cuh: decides how the columns are cut, chooses the instance and launches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/kernel.cuh"
#include "kernels/bsr_linear/sm90/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

template <class C>
std::int64_t range_of(std::int64_t cols, unsigned log2) {
  return ceil_div(ceil_div(cols, std::int64_t{1} << log2), kBox) * kBox;
}

/// Number of clusters that divide the block rows of one group of tokens among them.
constexpr std::int64_t clusters_of(int all, std::int64_t groups, std::int64_t strips) {
  return std::clamp<std::int64_t>(all / groups, 1, strips);
}

/// log2 of the thread blocks in a cluster, which is also the number of ranges that the columns are cut into,
/// or -1 if none fits. It minimises the time to move X and sums: X, again in every pass, comes through a
/// multiprocessor's port at 52 bytes per clock, and sums come from other thread blocks at 14.
template <class C>
int cluster_log2(const ClusterCounts& counts, std::int64_t groups, std::int64_t strips, std::int64_t cols) {
  constexpr double kXRate = 52, kSumRate = 14;
  int best = -1;
  double best_clocks = std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < counts.size(); ++i) {
    const std::int64_t x_bytes = range_of<C>(cols, i) * (C::kTokens * 2);
    if (counts[i] == 0 || x_bytes > x_in_shared_bytes(C::kTokens)) continue;
    const std::int64_t each = ceil_div(strips, clusters_of(counts[i], groups, strips)),
                       passes = ceil_div(each, C::kPassStrips);
    const double sums = static_cast<double>(each * C::kSlotFours * 16) * (1 - 1.0 / (1 << i));
    const double clocks = static_cast<double>(passes * x_bytes) / kXRate + sums / kSumRate;
    if (clocks >= best_clocks) continue;
    best = static_cast<int>(i);
    best_clocks = clocks;
  }
  return best;
}

template <class C>
int launch_x_in_shared(Params& params, const MatmulArgs& args) noexcept {
  constexpr std::size_t kMost = 227 * 1024;  // the limit of sm_90
  ClusterCounts counts;
  const int multiprocessors = runtime::cuda_device(args.device).multiprocessors;
  const cudaError_t ready =
      prepare<decode_x_in_shared_kernel<C>>(args.device, multiprocessors, 32 * C::kWarps, kMost, counts);
  if (ready != cudaSuccess) return ready;
  const std::int64_t groups = ceil_div(args.m, C::kTokens);
  const int log2 = cluster_log2<C>(counts, groups, params.block_rows, params.cols);
  static_assert(Layout<C>(x_in_shared_bytes(C::kTokens) / (C::kTokens * 2), kHopperDecodeRows).bytes <= kMost,
                "what the row does not refuse fits");
  if (log2 < 0) return cudaErrorInvalidValue;
  Cut cut;
  cut.range = static_cast<int>(range_of<C>(params.cols, static_cast<unsigned>(log2)));
  const TensorMapMatrix x{args.a, args.dtype, args.m, args.index.cols, args.a_stride * 2};
  if (!tensor_map_possible(x) || !encode_tensor_map(cut.x, x, {C::kTokens, kBox, kBox * 2}))
    return cudaErrorInvalidValue;
  const std::size_t bytes = Layout<C>(cut.range, params.block_rows).bytes;
  const auto clusters = static_cast<unsigned>(clusters_of(counts[log2], groups, params.block_rows));
  set_clusters(params, args, clusters, static_cast<unsigned>(log2), C::kWarps);
  return launch_kernel({.grid = dim3(clusters << log2, static_cast<unsigned>(groups)),
                        .block = 32 * C::kWarps,
                        .shared_bytes = bytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = 1 << log2},
                       decode_x_in_shared_kernel<C>, params, cut);
}

template <class Mma>
int launch(const MatmulArgs& args) noexcept {
  Params params{};
  if (args.m > kXInSharedTokens || args.index.block_rows() > kHopperDecodeRows || !fill(params, args))
    return cudaErrorInvalidValue;
  if (args.m <= 8) return launch_x_in_shared<Config<Mma, 1>>(params, args);
  if (args.m <= 16) return launch_x_in_shared<Config<Mma, 2>>(params, args);
  return launch_x_in_shared<Config<Mma, 4>>(params, args);
}

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
