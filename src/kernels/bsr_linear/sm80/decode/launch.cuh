// Host side of decode/kernel.cuh: chooses strip width, warps and instance, and launches.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/host.cuh"
#include "kernels/bsr_linear/sm80/decode/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::decode {

/// The widest strip that gives (nearly) every multiprocessor a thread block. X is read once per strip, so
/// wide strips read less of it.
template <class Element>
int strip_width(const Params<Element>& params, int multiprocessors) {
  const int widest = std::min(params.out_side, 32);
  // dX reads rows across a block: strips narrower than 32 bytes would leave half of each sector unused.
  const int narrowest = params.slot != nullptr ? std::min(widest, static_cast<int>(32 / sizeof(Element))) : 8;
  int strip = widest;
  while (strip > narrowest && (params.out_cols + strip - 1) / strip * 10 < std::int64_t{9} * multiprocessors)
    strip /= 2;
  return strip;
}

/// Warps of a thread block: as many as let all thread blocks be resident at once, since each waits longer
/// than it computes; 4 if they cannot all be resident. There are no more warps than a block row has chunks on
/// average, but at least 4, for the block rows that have more.
template <class C>
int warps_of(std::int64_t thread_blocks, double chunks, const runtime::CudaDevice& device) {
  constexpr std::int64_t kReserved = 1024;  // shared memory that the system reserves per thread block
  constexpr std::int64_t kRing = C::kStages * sizeof(Stage<C>);
  const auto capacity = static_cast<std::int64_t>(device.shared_bytes);
  const std::int64_t resident =
      (thread_blocks + device.multiprocessors - 1) / std::max(device.multiprocessors, 1);
  const std::int64_t by_memory = ((capacity + kReserved) / resident - kReserved) / kRing;
  const std::int64_t by_registers = C::kWarpsPerMultiprocessor / resident;
  std::int64_t warps = std::min(by_memory, by_registers);
  if (warps < 1) warps = std::min<std::int64_t>(4, capacity / kRing);
  warps = std::min(
      {warps, std::int64_t{C::kMostWarps}, std::max<std::int64_t>(static_cast<std::int64_t>(chunks) + 1, 4)});
  return static_cast<int>(std::max<std::int64_t>(warps, 1));
}

template <class Math, class C>
int launch_instance(Params<typename C::Element> params, const MatmulArgs& args) {
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  constexpr auto kKernel = &decode_kernel<Math, C>;
  if (const Readiness ready = make_ready<kKernel>(args.device, device.shared_bytes, 0);
      ready.status != cudaSuccess)
    return ready.status;
  params.strips_shift = std::countr_zero(static_cast<unsigned>(params.out_side / C::kStrip));
  const std::int64_t lists = (params.out_cols + params.out_side - 1) / params.out_side;
  const std::int64_t thread_blocks = lists << params.strips_shift;
  const double chunks =
      static_cast<double>(args.index.blocks << params.k_shift) / static_cast<double>(lists * C::kChunk);
  const int warps = warps_of<C>(thread_blocks, chunks, device);
  params.block_rows = static_cast<std::int32_t>(lists);
  return launch_kernel({.grid = static_cast<unsigned>(thread_blocks),
                        .block = static_cast<unsigned>(32 * warps),
                        .shared_bytes = warps * C::kStages * sizeof(Stage<C>),
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = waits_for_earlier<kKernel>(args.device)},
                       kKernel, params);
}

template <class Math, class Walk, int kStrip>
int launch_tiles(const Params<typename Math::Element>& params, const MatmulArgs& args) {
  if (args.m <= 16)
    return launch_instance<Math, Config<typename Math::Element, Walk, kStrip, 1>>(params, args);
  if (args.m <= 32)
    return launch_instance<Math, Config<typename Math::Element, Walk, kStrip, 2>>(params, args);
  return launch_instance<Math, Config<typename Math::Element, Walk, kStrip, 4>>(params, args);
}

template <class Math, class Walk>
int launch_strips(const Params<typename Math::Element>& params, const MatmulArgs& args) {
  switch (strip_width(params, runtime::cuda_device(args.device).multiprocessors)) {
    case 8: return launch_tiles<Math, Walk, 8>(params, args);
    case 16: return launch_tiles<Math, Walk, 16>(params, args);
    default: return launch_tiles<Math, Walk, 32>(params, args);
  }
}

template <class Math>
int launch(const MatmulArgs& args) {
  const auto params = params_of<typename Math::Element>(args);
  return args.direction == Direction::forward ? launch_strips<Math, Forward>(params, args)
                                              : launch_strips<Math, Dx>(params, args);
}

}  // namespace sparseloom::kernels::cuda::decode
