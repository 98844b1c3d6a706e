// Host side of kernel.cuh: chooses the cluster size and the instance, and launches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode/kernel.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// log2 of the thread blocks in a cluster. It is the smallest size that evens out the strips, where the
/// heaviest strip counts as four average ones. A cluster's two barriers and its reads of other thread blocks'
/// sums count as 10 to 20 KB of W.
inline unsigned cluster_log2(const ClusterCounts& counts, std::int64_t strips, double strip_bytes) {
  constexpr std::int64_t kHeaviest = 4;
  constexpr double kExchangeBytes[] = {0, 10e3, 13e3, 20e3};
  unsigned best = 0;
  double best_bytes = std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::int64_t most = std::max(ceil_div(strips, counts[i]), kHeaviest);
    const double bytes = static_cast<double>(most) * strip_bytes / (1 << i) + kExchangeBytes[i];
    if (bytes >= best_bytes) continue;
    best = i;
    best_bytes = bytes;
  }
  return best;
}

template <class C>
int launch_instance(Params& params, const MatmulArgs& args) noexcept {
  ClusterCounts counts;
  const int multiprocessors = runtime::cuda_device(args.device).multiprocessors;
  constexpr std::size_t kMost = shared_bytes<C>(kHopperDecodeRows);
  static_assert(kMost <= 227 * 1024, "what sm_90 has");  // the limit of sm_90
  const cudaError_t ready =
      prepare<decode90_kernel<C>>(args.device, multiprocessors, 32 * C::kWarps, kMost, counts);
  if (ready != cudaSuccess) return ready;
  const std::int64_t strips = std::int64_t{params.block_rows} << params.strips_log2;
  const std::int64_t values_bytes = args.index.blocks * args.index.block_elements() * 2;
  const unsigned log2 =
      cluster_log2(counts, strips, static_cast<double>(values_bytes) / static_cast<double>(strips));
  const auto clusters = static_cast<unsigned>(std::min<std::int64_t>(counts[log2], strips));
  set_clusters(params, args, clusters, log2, C::kWarps);
  return launch_kernel({.grid = clusters << log2,
                        .block = 32 * C::kWarps,
                        .shared_bytes = shared_bytes<C>(params.block_rows),
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = 1 << log2},
                       decode90_kernel<C>, params);
}

template <class Mma, bool kWide>
int launch_tokens(Params& params, const MatmulArgs& args) noexcept {
  if (args.m <= 8) return launch_instance<Config<Mma, kWide, 1>>(params, args);
  if (args.m <= 16) return launch_instance<Config<Mma, kWide, 2>>(params, args);
  if (args.m <= 32) return launch_instance<Config<Mma, kWide, 4>>(params, args);
  return launch_instance<Config<Mma, kWide, 8>>(params, args);
}

template <class Mma>
int launch(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  Params params{};
  if (index.cols % 8 != 0 || index.block_rows() > kHopperDecodeRows || !fill(params, args))
    return cudaErrorInvalidValue;
  if (index.block.cols == 32) return launch_tokens<Mma, false>(params, args);
  return encode_values(params.w, args) ? launch_tokens<Mma, true>(params, args) : cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda::decode90
