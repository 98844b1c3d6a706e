// Host side of the staged decode kernel: looks up the instance that a schedule names, divides the work, and
// launches. The division is not in the schedule yet, because it depends on how many clusters of the
// kernel the device runs at once, which is asked here. It changes no instance.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/host.cuh"
#include "kernels/bsr_linear/sm80/decode_staged/kernel.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::decode::staged {

inline constexpr std::int64_t kRangeAlign = 128;  // k; whole blocks of every side

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// Bytes that a multiprocessor moves. Its port is the bottleneck for everything but W.
template <class C>
double bytes_moved(const Tiling& tiling, std::int64_t thread_blocks, std::int64_t waves,
                   const Params<typename C::Element>& params, double stored) {
  // Two barriers of the cluster, about 0.9 us, as bytes of a port of 70 GB/s.
  constexpr double kClusterBytes = 60e3;
  const double x = double{1} * tiling.range * C::kGroup * params.m * C::kSize;
  const double partials =
      tiling.split == 1 ? 0 : kClusterBytes + 2.0 * tiling.block_strips * C::kVectors * sizeof(float4);
  return static_cast<double>(waves) * (x + partials + stored / static_cast<double>(thread_blocks));
}

template <class C>
Tiling tiling_of(const Params<typename C::Element>& params, const MatmulArgs& args,
                 const runtime::CudaDevice& device, const std::array<int, 4>& clusters) {
  constexpr std::int64_t kPartialBytes = C::kVectors * sizeof(float4);
  const auto shared = static_cast<std::int64_t>(device.shared_bytes);
  const std::int64_t most_warps = std::min<std::int64_t>(C::kMostWarps, shared / kPartialBytes);
  const std::int64_t block_rows = ceil_div(params.out_cols, params.out_side);
  const double stored = static_cast<double>(args.index.blocks) * params.block_bytes;
  const std::int64_t k = round_up(params.a_cols, kRangeAlign);

  // Choose the split of k over a cluster that moves the fewest bytes.
  Tiling best;
  double best_bytes = 0;
  for (unsigned i = 0; i < clusters.size(); ++i) {
    const int split = 1 << i;
    const std::int64_t slots = split == 1 ? std::max(device.multiprocessors, 1) : clusters[i];
    if (slots == 0) continue;
    Tiling tiling;
    tiling.strips = static_cast<int>(block_rows << params.strips_shift);
    tiling.split = split;
    const std::int64_t waves = ceil_div(tiling.strips, slots * most_warps);
    tiling.block_strips = static_cast<int>(ceil_div(tiling.strips, slots * waves));
    tiling.range = static_cast<int>(round_up(ceil_div(k, split), kRangeAlign) / C::kGroup);
    const std::int64_t thread_blocks = ceil_div(tiling.strips, tiling.block_strips) * split;
    const double bytes = bytes_moved<C>(tiling, thread_blocks, waves, params, stored);
    if (split > 1 && bytes >= best_bytes) continue;
    best = tiling;
    best_bytes = bytes;
  }

  const double groups = static_cast<double>(args.index.blocks << params.k_shift) /
                        (C::kGroup * static_cast<double>(block_rows) * best.split);
  // Steps of a strip in one thread block, on average.
  const auto steps = static_cast<std::int64_t>(groups / C::kStepGroups) + 1;
  // At least 8 warps in all, since they also copy X.
  const std::int64_t wanted = std::max<std::int64_t>(steps, 8 / best.block_strips);
  best.strip_warps =
      static_cast<int>(std::max<std::int64_t>(std::min(most_warps / best.block_strips, wanted), 1));
  best.k_groups = static_cast<int>(k / C::kGroup);
  // At least two chunks: the first is multiplied while the second arrives.
  const std::int64_t range = std::int64_t{best.range} * C::kGroup;
  const std::int64_t most = shared / (2 * C::kTokens * C::kSize) / kRangeAlign * kRangeAlign;
  const std::int64_t chunk =
      round_up(ceil_div(range, std::max<std::int64_t>(ceil_div(range, most), 2)), kRangeAlign);
  best.chunk = static_cast<int>(chunk / C::kGroup);
  best.chunk_bytes = static_cast<unsigned>(chunk * C::kTokens * C::kSize);
  return best;
}

template <class C>
int launch_instance(Params<typename C::Element> params, const MatmulArgs& args,
                    const runtime::CudaDevice& device) {
  const Readiness ready =
      make_ready<&decode_staged_kernel<C>>(args.device, device.shared_bytes, 32 * C::kMostWarps);
  if (ready.status != cudaSuccess) return ready.status;
  params.strips_shift = std::countr_zero(static_cast<unsigned>(params.out_side / C::kStrip));
  const Tiling tiling = tiling_of<C>(params, args, device, ready.clusters);
  const int warps = tiling.block_strips * tiling.strip_warps;

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(tiling.strips, tiling.block_strips) * tiling.split));
  config.blockDim = dim3(32 * warps);
  const int resident = tiling.range > tiling.chunk ? 2 : 1;
  config.dynamicSmemBytes = std::max<std::size_t>(std::size_t{1} * resident * tiling.chunk_bytes,
                                                  warps * C::kVectors * sizeof(float4));
  config.stream = static_cast<cudaStream_t>(args.stream);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(tiling.split), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = tiling.split > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, decode_staged_kernel<C>, params, tiling);
  if (error != cudaSuccess) cudaGetLastError();  // clear it for the next caller
  return error;
}

template <class Mma, int kPieces, int kTiles>
int launch_tokens(const Params<typename Mma::Element>& params, const Schedule& schedule,
                  const MatmulArgs& args) {
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  switch (schedule.tile_m) {
    case 16: return launch_instance<Config<Mma, kPieces, kTiles, 1>>(params, args, device);
    case 32: return launch_instance<Config<Mma, kPieces, kTiles, 2>>(params, args, device);
    case 64: return launch_instance<Config<Mma, kPieces, kTiles, 4>>(params, args, device);
    default: return cudaErrorInvalidValue;
  }
}

template <class Mma, int kPieces>
int launch_strips(const Params<typename Mma::Element>& params, const Schedule& schedule,
                  const MatmulArgs& args) {
  // Tokens beyond the tile would be left out, and strips have to divide a block.
  if (args.m > schedule.tile_m || schedule.tile_n > params.out_side) return cudaErrorInvalidValue;
  switch (schedule.tile_n) {
    case 8: return launch_tokens<Mma, kPieces, 1>(params, schedule, args);
    case 16: return launch_tokens<Mma, kPieces, 2>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

template <class Mma>
int launch(const MatmulArgs& args, const Schedule& schedule) {
  const auto params = params_of<typename Mma::Element>(args);
  return args.index.block.cols == 8 ? launch_strips<Mma, 1>(params, schedule, args)
                                    : launch_strips<Mma, 2>(params, schedule, args);
}

}  // namespace sparseloom::kernels::cuda::decode::staged
