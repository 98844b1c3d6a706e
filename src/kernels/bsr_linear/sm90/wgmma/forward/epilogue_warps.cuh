// Epilogue warps (kHasEpilogueWarps), for a training step, which keeps the sums beside their activation. The
// results are those of torch's two separate operators:
//
//   pre = round(sums + bias)
//   out = round(act(pre))
//
// The consumers round a tile's sums and pass them through the epilogue queue. The epilogue warps, which are
// in the producers' warpgroup and in one more, store the sums, apply the activation and store the result,
// while the consumers multiply the next tile.
//
//   consumers        [tile 0      ]round[tile 1      ]round[tile 2 ..
//   epilogue warps                      store, act, store  store, act, store
//
// A unit is the amount that passes through the queue at a time. Like a stage it has two mbarriers: `handed`
// completes when the unit's sums are in the staging buffer, and `taken` when TMA has read its results from
// there. The latter comes up to 2000 clocks after the store, since the producers' copies share the TMA queue.
// Still, waiting for it after the next unit's activation was slower; so were units split into quarters among
// warps, and stores without TMA. The queue costs one stage of the ring. If the sums are not wanted, it is
// usually faster that the consumers apply the activation (docs/performance.md).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// The consumer warps' side of the epilogue queue: begin(), write the unit's boxes, end().
template <class T>
class EpilogueQueue {
 public:
  static constexpr int kWriters = T::kSwapAB ? 4 : 1;  // warps that fill one unit

  explicit __device__ __forceinline__ EpilogueQueue(SharedStorage<T>& shared)
      : handed_(ptx::shared_address(shared.handed)), taken_(ptx::shared_address(shared.taken)) {}

  /// Waits until the epilogue warps have stored the unit's previous content.
  __device__ __forceinline__ void begin(int unit) const {
    ptx::mbarrier_wait(taken_ + unit * 8, parity_ ^ 1);
  }
  /// Passes the unit to the epilogue warps.
  __device__ __forceinline__ void end(int unit) const {
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(handed_ + unit * 8);
  }
  __device__ __forceinline__ void end_tile() { parity_ ^= 1; }

 private:
  const std::uint32_t handed_, taken_;
  unsigned parity_ = 0;
};

/// Issues the TMA stores of a unit's boxes; one lane calls it.
template <class T>
__device__ __forceinline__ void store_unit(const CUtensorMap& map, const Params& params, const Place& place,
                                           int unit, std::uint32_t boxes) {
  if constexpr (T::kSwapAB) {
    constexpr int kUnits = T::kUnits / T::kConsumers;
    ptx::tma_store_2d(&map, in_matrix<T>(params, place.output + unit / kUnits * 64),
                      place.token + unit % kUnits * T::kStoreRows, boxes, params.out_policy);
  } else {
    constexpr int kWarps = 4;  // in a consumer warpgroup; each has a unit
#pragma unroll 1
    for (int n = 0; n < T::kUnitBoxes; ++n) {
      const OutBox<T> box(params, place,
                          unit / kWarps * (T::kTokens / T::kConsumers) + unit % kWarps * T::kStoreRows, n);
      ptx::tma_store_2d(&map, box.column, box.row, boxes + n * T::kStoreBytes, params.out_policy);
    }
  }
  ptx::bulk_commit();
}

/// A lane's 16-byte vectors of a quarter of a unit: 32 elements, whose instructions hide each other's
/// latencies.
template <class T>
struct Quarter {
  using Out = typename T::Element::Out;
  static constexpr int kBytes = T::kUnitBytes / 4, kCount = kBytes / 512;
  std::uint32_t pairs[kCount][4];

  __device__ __forceinline__ void load(std::uint32_t from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) ptx::ld_shared(pairs[i], from + i * 512);
  }
  template <class Function>
  __device__ __forceinline__ void activate(Function function) {
#pragma unroll
    for (auto& vector : pairs) {
#pragma unroll
      for (std::uint32_t& pair : vector) {
        pair = Out::pair(function(Out::to_f32(static_cast<std::uint16_t>(pair))),
                         function(Out::to_f32(static_cast<std::uint16_t>(pair >> 16))));
      }
    }
  }
  __device__ __forceinline__ void store(std::uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) ptx::st_shared_v4_b32(to + i * 512, pairs[i]);
  }
};

/// y <- activation(z) in place and element by element, so that the boxes' swizzle does not matter.
/// before_store() is called before the first write.
template <class T, class BeforeStore>
__device__ __forceinline__ void activate_unit(const Params& params, std::uint32_t boxes,
                                              BeforeStore before_store) {
  constexpr int kBytes = Quarter<T>::kBytes;
  epilogue::with_activation<true>(params.activation, [&](auto function) {
    const std::uint32_t lane_row = boxes + threadIdx.x % 32 * 16;
    Quarter<T> even, odd;  // one is loaded while the other is activated
    even.load(lane_row);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t half_row = lane_row + half * 2 * kBytes;
      odd.load(half_row + kBytes);
      even.activate(function);
      if (half == 0) before_store();
      even.store(half_row);
      if (half == 0) even.load(half_row + 2 * kBytes);
      odd.activate(function);
      odd.store(half_row + kBytes);
    }
  });
}

/// The loop of one of the kEpilogueWarps warps. It takes every kEpilogueWarps-th unit, counted over all
/// tiles.
template <class T>
__device__ __forceinline__ void run_epilogue_warp(const Params& params, SharedStorage<T>& shared,
                                                  int epilogue_warp) {
  const std::uint32_t handed = ptx::shared_address(shared.handed), taken = ptx::shared_address(shared.taken),
                      staging = ptx::shared_address(shared.staging);
  unsigned parity = 0;
  int unit = epilogue_warp;
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
#pragma unroll 1
    for (; unit < T::kUnits; unit += T::kEpilogueWarps) {
      const std::uint32_t boxes = staging + unit * T::kUnitBytes;
      // Wait for the unit and store its sums. Another warp may have had the unit of the tile before: until
      // that one was taken, `handed` is a phase behind, where this parity would pass.
      ptx::mbarrier_wait(taken + unit * 8, parity ^ 1);
      ptx::mbarrier_wait(handed + unit * 8, parity);
      if (ptx::elect_lane()) store_unit<T>(params.pre, params, place, unit, boxes);
      // Activate in place, but write only after TMA has read the sums.
      activate_unit<T>(params, boxes, [] {
        if (ptx::elect_lane()) ptx::bulk_wait_read<0>();
        __syncwarp();
      });
      // Store the result and release the unit to the consumers.
      ptx::fence_proxy_async();
      __syncwarp();
      if (ptx::elect_lane()) {
        store_unit<T>(params.out, params, place, unit, boxes);
        ptx::bulk_wait_read<0>();  // shared memory must outlive TMA's reads
        ptx::mbarrier_arrive(taken + unit * 8);
      }
    }
    unit -= T::kUnits;
    parity ^= 1;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
