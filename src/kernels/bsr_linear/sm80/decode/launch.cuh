// Host side of decode/kernel.cuh: looks up the instance that a schedule names, and launches it.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/host.cuh"
#include "kernels/bsr_linear/sm80/decode/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::decode {

template <class Math, class C>
int launch_instance(Params<typename C::Element> params, const Schedule& schedule, const MatmulArgs& args) {
  static_assert(C::kStages * sizeof(Stage<C>) == ring_bytes(C::kStrip, C::kTokenTiles),
                "the choice of warps assumes this size");
  constexpr auto kKernel = &decode_kernel<Math, C>;
  const auto all = static_cast<int>(runtime::cuda_device(args.device).shared_bytes);
  if (const cudaError_t status =
          allow_shared_memory<kKernel>(all, args.device, cudaSharedmemCarveoutMaxShared);
      status != cudaSuccess)
    return status;
  params.strips_shift = std::countr_zero(static_cast<unsigned>(params.out_side / C::kStrip));
  const std::int64_t lists = (params.out_cols + params.out_side - 1) / params.out_side;
  params.block_rows = static_cast<std::int32_t>(lists);
  return launch_kernel({.grid = static_cast<unsigned>(lists << params.strips_shift),
                        .block = static_cast<unsigned>(32 * schedule.warps),
                        .shared_bytes = schedule.warps * C::kStages * sizeof(Stage<C>),
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = waits_for_earlier<kKernel>(args.device)},
                       kKernel, params);
}

template <class Math, class Walk, int kStrip>
int launch_tiles(const Params<typename Math::Element>& params, const Schedule& schedule,
                 const MatmulArgs& args) {
  using Element = typename Math::Element;
  switch (schedule.tile_m) {
    case 16: return launch_instance<Math, Config<Element, Walk, kStrip, 1>>(params, schedule, args);
    case 32: return launch_instance<Math, Config<Element, Walk, kStrip, 2>>(params, schedule, args);
    case 64: return launch_instance<Math, Config<Element, Walk, kStrip, 4>>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

template <class Math, class Walk>
int launch_strips(const Params<typename Math::Element>& params, const Schedule& schedule,
                  const MatmulArgs& args) {
  // The kernel would omit tokens past the tile, and strips have to divide a block.
  if (args.m > schedule.tile_m || schedule.tile_n > params.out_side ||
      schedule.tile_k * static_cast<int>(sizeof(typename Math::Element)) != kChunkBytes ||
      schedule.warps < 1 || schedule.warps > kMostWarps)
    return cudaErrorInvalidValue;
  switch (schedule.tile_n) {
    case 8: return launch_tiles<Math, Walk, 8>(params, schedule, args);
    case 16: return launch_tiles<Math, Walk, 16>(params, schedule, args);
    case 32: return launch_tiles<Math, Walk, 32>(params, schedule, args);
    default: return cudaErrorInvalidValue;
  }
}

template <class Math>
int launch(const MatmulArgs& args, const Schedule& schedule) {
  const auto params = params_of<typename Math::Element>(args);
  return args.direction == Direction::forward ? launch_strips<Math, Forward>(params, schedule, args)
                                              : launch_strips<Math, Dx>(params, schedule, args);
}

}  // namespace sparseloom::kernels::cuda::decode
