// Host side of the staged decode kernel: looks up the instance that a schedule names, and launches it with
// the schedule's division of the work.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/host.cuh"
#include "kernels/bsr_linear/sm80/decode_staged/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::decode::staged {

template <class C>
int launch_instance(Params<typename C::Element> params, const Schedule& schedule, const MatmulArgs& args) {
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  constexpr auto kKernel = &decode_staged_kernel<C>;
  if (const cudaError_t status = allow_shared_memory<kKernel>(static_cast<int>(device.shared_bytes),
                                                              args.device, cudaSharedmemCarveoutMaxShared);
      status != cudaSuccess)
    return status;
  params.strips_shift = std::countr_zero(static_cast<unsigned>(params.out_side / C::kStrip));
  const std::int64_t block_rows = ceil_div(params.out_cols, params.out_side);
  const Tiling tiling = tiling_of(schedule, block_rows << params.strips_shift, params.a_cols, C::kGroup);
  const int warps = tiling.block_strips * tiling.strip_warps;
  const std::size_t shared_bytes = shared_bytes_of(tiling, C::kVectors);
  if (warps < 1 || warps > C::kMostWarps || tiling.chunk < 1 || schedule.tile_k % kRangeAlign != 0 ||
      shared_bytes > device.shared_bytes)
    return cudaErrorInvalidValue;
  return launch_kernel(
      {.grid = static_cast<unsigned>(ceil_div(tiling.strips, tiling.block_strips) * tiling.split),
       .block = static_cast<unsigned>(32 * warps),
       .shared_bytes = shared_bytes,
       .stream = static_cast<cudaStream_t>(args.stream),
       .cluster = tiling.split},
      kKernel, params, tiling);
}

template <class Mma, int kLaneWords, int kTiles>
int launch_tokens(const Params<typename Mma::Element>& params, const Schedule& schedule,
                  const MatmulArgs& args) {
  switch (schedule.tile_m) {
    case 16: return launch_instance<Config<Mma, kLaneWords, kTiles, 1>>(params, schedule, args);
    case 32: return launch_instance<Config<Mma, kLaneWords, kTiles, 2>>(params, schedule, args);
    case 64: return launch_instance<Config<Mma, kLaneWords, kTiles, 4>>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

template <class Mma, int kLaneWords>
int launch_strips(const Params<typename Mma::Element>& params, const Schedule& schedule,
                  const MatmulArgs& args) {
  // The kernel would omit tokens past the tile, and strips have to divide a block.
  if (args.m > schedule.tile_m || schedule.tile_n > params.out_side) return cudaErrorInvalidValue;
  switch (schedule.tile_n) {
    case 8: return launch_tokens<Mma, kLaneWords, 1>(params, schedule, args);
    case 16: return launch_tokens<Mma, kLaneWords, 2>(params, schedule, args);
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
