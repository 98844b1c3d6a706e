// The warpgroups of sm90_expanded that multiply: M of the wgmma are 64 outputs, N are the tile's tokens.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/store.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::expanded {

// Rows of 32 bytes: a unit is 8 of them, its 16-byte chunk c of row r at chunk c ^ r / 4. A packed block of
// 16 x 16 is two units. K-major (forward), rows are outputs; MN-major (dX), rows are positions of the
// reduction, and the next 16 outputs are the next slot.
inline constexpr auto kSwizzle32 = static_cast<ptx::Swizzle>(3);
template <class C>
inline constexpr std::uint64_t kDescriptorW = ptx::wgmma_descriptor(kSwizzle32, 256, C::kDx ? kSlotBytes : 0);
inline constexpr std::uint64_t kDescriptorX = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);

/// sums += W x^T over the nonempty slices of the warpgroup's groups. x and w: shared addresses / 16. record:
/// a byte per group.
template <class C>
__device__ __forceinline__ void multiply(Sums<C>& sums, std::uint32_t x, std::uint32_t w,
                                         std::uint32_t record) {
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
    for (int group = 0; group < C::kOwnGroups; ++group) {
      if ((record & (1u << (group * 8 + slice))) == 0) continue;
      // The fence follows the branch, and each wgmma is a commit group of its own, for the reasons in
      // wgmma/forward/swap_ab.cuh and consume.cuh.
      ptx::wgmma_fence();
      C::Element::template mma_swap_ab<C::kDx>(
          sums[group], kDescriptorW<C> | (w + (slice * kSliceBytes + group * kGroupBytes) / 16),
          kDescriptorX | (x + slice * 2));
      ptx::wgmma_commit();
    }
  }
}

/// Waits until at most the `groups` youngest wgmma groups are in flight.
template <int kMost>
__device__ __forceinline__ void wait_for_all_but(int groups) {
  if constexpr (kMost == 0) {
    ptx::wgmma_wait<0>();
  } else {
    if (groups == kMost) {
      ptx::wgmma_wait<kMost>();
    } else {
      wait_for_all_but<kMost - 1>(groups);
    }
  }
}

template <class C>
__device__ __forceinline__ void consume(const Params& params, const Cut& cut, int share, Shared<C>& shared,
                                        int warpgroup) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring) / 16;
  const int lane = threadIdx.x % 32;
  unsigned turn = 0;
  // Releases the previous stage. All lanes have read its record once they have issued its wgmma.
  const auto release_last = [&] {
    if (lane == 0) pipeline.release(StageOf<C::kStages>(turn - 1).index);
  };
  cut.for_each_segment(share, [&](const Cut::Segment& segment) {
    Sums<C> sums = {};
#pragma unroll 1
    for (int k_tile = segment.first; k_tile < segment.end; ++k_tile, ++turn) {
      const StageOf<C::kStages> stage(turn);
      pipeline.wait(stage.index, stage.parity);
      ptx::fence_proxy_async();  // cp.async wrote W
      const auto* const records =
          reinterpret_cast<const std::uint16_t*>(shared.records[stage.index]) + warpgroup;
      // The reduction tells the compiler that branches on the record are uniform.
      const std::uint32_t record = __reduce_or_sync(~0u, lane == 0 ? *records : 0);
      const std::uint32_t x = ring + stage.index * (C::kStageBytes / 16),
                          w = x + (C::kXBytes + warpgroup * C::kOwnGroups * kGroupBytes) / 16;
      multiply<C>(sums, x, w, record);
      // The previous stage finishes while this one is multiplied.
      wait_for_all_but<C::kOwnGroups * kSlices>(__popc(record));
      if (k_tile > segment.first) release_last();
    }
    ptx::wgmma_wait<0>();
    release_last();
#pragma unroll
    for (auto& group : sums) ptx::pin(group);
    end_segment<C>(params, cut, segment, share, shared, sums);
  });
}

}  // namespace sparseloom::kernels::cuda::expanded
