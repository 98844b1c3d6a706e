// Host side of kernel.cuh: looks up the instance that a schedule names, and launches it.
#pragma once

#include <cstdint>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/kernel.cuh"
#include "kernels/bsr_linear/sm90/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::decode90::x_in_shared {

/// As in ../decode/launch.cuh: the schedule has the size of a cluster, and their number is asked here.
template <class C>
int launch_x_in_shared(Params& params, const Schedule& schedule, const MatmulArgs& args) noexcept {
  constexpr std::size_t kMost = 227 * 1024;  // the limit of sm_90
  static_assert(Layout<C>(x_in_shared_bytes(C::kTokens) / (C::kTokens * 2), kHopperDecodeRows).bytes <= kMost,
                "what the row does not refuse fits");
  static_assert(C::kPassStrips == kPassBlockRows, "the choice counts on it");
  const unsigned log2 = cluster_log2(schedule);
  const int most = clusters_at_once(args.device, log2);
  if (most == 0) return cudaErrorInvalidValue;
  if (const cudaError_t ready = allow_shared_memory<decode_x_in_shared_kernel<C>>(kMost, args.device);
      ready != cudaSuccess)
    return ready;
  const std::int64_t groups = ceil_div(args.m, C::kTokens);
  Cut cut;
  cut.range = static_cast<int>(range_of(params.cols, 1 << log2));
  if (cut.range * (C::kTokens * 2) > x_in_shared_bytes(C::kTokens)) return cudaErrorInvalidValue;
  const TensorMapMatrix x{args.a, args.dtype, args.m, args.index.cols, args.a_stride * 2};
  if (!tensor_map_possible(x) || !encode_tensor_map(cut.x, x, {C::kTokens, kBox, kBox * 2}))
    return cudaErrorInvalidValue;
  const std::size_t bytes = Layout<C>(cut.range, params.block_rows).bytes;
  const auto clusters = static_cast<unsigned>(clusters_of(most, groups, params.block_rows));
  set_clusters(params, args, clusters, log2, C::kWarps);
  return launch_kernel({.grid = dim3(clusters << log2, static_cast<unsigned>(groups)),
                        .block = 32 * C::kWarps,
                        .shared_bytes = bytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = true,
                        .cluster = 1 << log2},
                       decode_x_in_shared_kernel<C>, params, cut);
}

template <class Mma>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  Params params{};
  if (args.m > kXInSharedTokens || args.index.block_rows() > kHopperDecodeRows || !fill(params, args))
    return cudaErrorInvalidValue;
  if (schedule.tile_n != kSide || schedule.tile_k != kSide) return cudaErrorInvalidValue;
  switch (schedule.tile_m) {
    case 8: return launch_x_in_shared<Config<Mma, 1>>(params, schedule, args);
    case 16: return launch_x_in_shared<Config<Mma, 2>>(params, schedule, args);
    case 32: return launch_x_in_shared<Config<Mma, 4>>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::decode90::x_in_shared
