// kFinishes, what a training step keeps: pre = round(sums + bias), out = round(act(pre)), as torch's own two
// operators would. The consumers round a tile's sums and hand them over; the finishers, warps beside the
// producers, store them, apply the activation and store the result, while the consumers multiply the next
// tile.
//
//   consumers   [tile 0      ]round[tile 1      ]round[tile 2 ..
//   finishers                 store, act, store  store, act, store
//
// A unit is what is handed over at a time, in two steps as a stage is: handed, when its sums lie in the
// staging, and taken, when TMA has read there what became of them. That is as late as 2000 clocks behind its
// store, since the producers' copies stand in the same queue; yet to wait for it behind the next unit's
// activation, to share units out by quarters, and stores past TMA were slower. The price is a stage of the
// ring; where the sums are not wanted, consumers that activate them themselves are 4 % slower to 12 % faster
// (docs/performance.md).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/epilogue/activation.cuh"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/ld_shared.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"
#include "kernels/cuda/sm90/wgmma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// A consumer warp's side of it: begin, the unit's boxes written, end.
template <class T>
class HandOver {
 public:
  static constexpr int kWriters = T::kTurned ? 4 : 1;  // warps that fill a unit together

  explicit __device__ __forceinline__ HandOver(SharedStorage<T>& shared)
      : handed_(ptx::shared_address(shared.handed)), taken_(ptx::shared_address(shared.taken)) {}

  __device__ __forceinline__ void begin(int unit) const {
    ptx::mbarrier_wait(taken_ + unit * 8, parity_ ^ 1);
  }
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

/// Starts the stores of a unit's boxes, by one lane.
template <class T>
__device__ __forceinline__ void store_unit(const CUtensorMap& map, const Params& params, const Place& place,
                                           int unit, std::uint32_t boxes) {
  if constexpr (T::kTurned) {
    constexpr int kUnits = T::kUnits / T::kConsumers;
    ptx::tma_store_2d(&map, in_matrix(params, place.output + unit / kUnits * 64),
                      place.token + unit % kUnits * T::kStoreRows, boxes, params.out_policy);
  } else {
    constexpr int kWarps = 4;  // of a consumer warpgroup, a unit each
#pragma unroll 1
    for (int n = 0; n < T::kUnitBoxes; ++n) {
      const OutBox<T> box(params, place,
                          unit / kWarps * (T::kTokens / T::kConsumers) + unit % kWarps * T::kStoreRows, n);
      ptx::tma_store_2d(&map, box.column, box.row, boxes + n * T::kStoreBytes, params.out_policy);
    }
  }
  ptx::bulk_commit();
}

/// A lane's share of a quarter of a unit, in vectors of 16 bytes: 32 elements, whose instructions hide each
/// other's latencies.
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

/// y <- activation(z) in place, element by element: however boxes are swizzled. before_store: what must have
/// ended before.
template <class T, class BeforeStore>
__device__ __forceinline__ void activate_unit(const Params& params, std::uint32_t boxes,
                                              BeforeStore before_store) {
  constexpr int kBytes = Quarter<T>::kBytes;
  epilogue::with_activation<true>(params.activation, [&](auto function) {
    const std::uint32_t mine = boxes + threadIdx.x % 32 * 16;
    Quarter<T> even, odd;  // one on its way from shared memory while the other is activated
    even.load(mine);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t here = mine + half * 2 * kBytes;
      odd.load(here + kBytes);
      even.activate(function);
      if (half == 0) before_store();
      even.store(here);
      if (half == 0) even.load(here + 2 * kBytes);
      odd.activate(function);
      odd.store(here + kBytes);
    }
  });
}

/// Warp `finisher` of kFinishers: every kFinishers-th unit, counted over all tiles.
template <class T>
__device__ __forceinline__ void finish(const Params& params, SharedStorage<T>& shared, int finisher) {
  const std::uint32_t handed = ptx::shared_address(shared.handed), taken = ptx::shared_address(shared.taken),
                      staging = ptx::shared_address(shared.staging);
  unsigned parity = 0;
  int unit = finisher;
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
#pragma unroll 1
    for (; unit < T::kUnits; unit += T::kFinishers) {
      const std::uint32_t boxes = staging + unit * T::kUnitBytes;
      ptx::mbarrier_wait(handed + unit * 8, parity);
      if (ptx::elect_lane()) store_unit<T>(params.pre, params, place, unit, boxes);
      activate_unit<T>(params, boxes, [] {
        if (ptx::elect_lane()) ptx::bulk_wait_read<0>();  // of what is stored as it is
        __syncwarp();
      });
      ptx::fence_proxy_async();
      __syncwarp();
      if (ptx::elect_lane()) {
        store_unit<T>(params.out, params, place, unit, boxes);
        ptx::bulk_wait_read<0>();  // also before shared memory goes with the thread block
        ptx::mbarrier_arrive(taken + unit * 8);
      }
    }
    unit -= T::kUnits;
    parity ^= 1;
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
