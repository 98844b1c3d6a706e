// Host side of kernel.cuh: looks up the instance that a schedule names, and launches it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode/kernel.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// The schedule has the size of a cluster. Their number is asked here: it is that of the choice
/// (cluster_counts keeps it), and changes no code that runs.
template <class C>
int launch_instance(Params& params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  constexpr std::size_t kMost = shared_bytes<C>(kHopperDecodeRows);
  static_assert(kMost <= 227 * 1024, "what sm_90 has");  // the limit of sm_90
  const unsigned log2 = cluster_log2(schedule);
  const int most = clusters_at_once(args.device, log2);
  if (most == 0) return cudaErrorInvalidValue;
  if (const cudaError_t ready = allow_shared_memory<decode90_kernel<C>>(kMost, args.device);
      ready != cudaSuccess)
    return ready;
  const std::int64_t strips = std::int64_t{params.block_rows} << params.strips_log2;
  const auto clusters = static_cast<unsigned>(std::min<std::int64_t>(most, strips));
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
int launch_tokens(Params& params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  // Tokens beyond the tile would be left out.
  if (args.m > schedule.tile_m || schedule.tile_n != kStrip || schedule.tile_k != (kWide ? 64 : 32))
    return cudaErrorInvalidValue;
  switch (schedule.tile_m) {
    case 8: return launch_instance<Config<Mma, kWide, 1>>(params, schedule, args);
    case 16: return launch_instance<Config<Mma, kWide, 2>>(params, schedule, args);
    case 32: return launch_instance<Config<Mma, kWide, 4>>(params, schedule, args);
    case 64: return launch_instance<Config<Mma, kWide, 8>>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

template <class Mma>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  Params params{};
  if (index.cols % 8 != 0 || index.block_rows() > kHopperDecodeRows || !fill(params, args))
    return cudaErrorInvalidValue;
  if (index.block.cols == 32) return launch_tokens<Mma, false>(params, schedule, args);
  return encode_values(params.w, args) ? launch_tokens<Mma, true>(params, schedule, args)
                                       : cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda::decode90
