// The consumers: two warpgroups, each with half of the tile's tokens and all of its lines. Per slab they test in line which parts
// are present (a jump table cost 190 cycles a part) and multiply those alone, so that what x holds under an absent block, NaN
// included, never reaches a sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_store.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// sums += x parts^T over the slab's present parts; one group. x and parts: shared addresses / 16.
template <class T>
__device__ __forceinline__ void multiply_slab(Sums<T>& sums, std::uint32_t x, std::uint32_t parts, std::uint32_t record) {
  ptx::wgmma_fence();
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
      if ((record & T::present(line, part)) == 0) continue;
      const std::uint32_t w = parts + (line * T::kParts + part) * (T::kPartBytes / 16);
#pragma unroll
      for (int step = 0; step < T::kPart / 16; ++step) {
#pragma unroll
        for (int block = 0; block < T::kTokenBlocks; ++block) {
          T::Element::template mma<T::kIsDx>(sums[block][line],
                                             T::kDescriptorX | (x + block * (64 * 128 / 16) + (part * T::kPart / 16 + step) * 2),
                                             T::kDescriptorPart | (w + step * (T::kStepBytes / 16)));
        }
      }
    }
  }
  ptx::wgmma_commit();
}

/// Of the ring, in the order of the producer's records.
template <class T>
struct Stage {
  unsigned index, parity;
  explicit __device__ __forceinline__ Stage(unsigned turn) : index(turn % T::kStages), parity(turn / T::kStages % 2) {}
};

/// One of the two warpgroups.
template <class T>
__device__ __forceinline__ void consume(const Params& params, SharedStorage<T>& shared, int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const std::uint32_t full = ptx::shared_address(shared.full), empty = ptx::shared_address(shared.empty),
                      records = ptx::shared_address(shared.record),
                      staging = ptx::shared_address(shared.staging[warpgroup * 4 + warp]);
  const std::uint32_t ring = ptx::shared_address(shared.ring) / 16;
  const std::uint32_t own_rows = warpgroup * (T::kTokens / T::kConsumers) * 128 / 16;
  const int first_row = warpgroup * (T::kTokens / T::kConsumers) + warp * T::kStoreRows;
  // The same in all lanes; said so that the branches on it are uniform.
  const auto record_of = [&](unsigned stage) { return __shfl_sync(0xffffffff, ptx::ld_shared_b32(records + stage * 4), 0); };

  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const Place place = place_of<T>(params, tile);
    const Bias<T> bias = fetch_bias<T>(params, place);
    Sums<T> sums = {};
    Stage<T> stage(turn);
    ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
    std::uint32_t record = record_of(stage.index);
#pragma unroll 1
    while (true) {
      const std::uint32_t at = ring + stage.index * (T::kStageBytes / 16);
      multiply_slab<T>(sums, at + own_rows, at + T::kXBytes / 16, record);
      // While the tensor cores work, the next record, if it is there; to wait for it now would keep this stage from the producer.
      const std::uint32_t done = empty + stage.index * 8;
      const bool last = record & T::kLast;
      bool ready = false;
      if (!last) {
        stage = Stage<T>(turn + 1);
        ready = __all_sync(0xffffffff, ptx::mbarrier_test_wait(full + stage.index * 8, stage.parity));
        if (ready) record = record_of(stage.index);
      }
      ++turn;
      ptx::wgmma_wait<0>();
      if (lane == 0) ptx::mbarrier_arrive(done);
      if (last) break;
      if (!ready) {
        ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
        record = record_of(stage.index);
      }
    }
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (auto& slice : block) ptx::pin(slice);
    }
    store_tile<T>(params, place, bias, staging, first_row, sums);
  }
  if (ptx::elect_lane()) ptx::bulk_wait_read<0>();  // shared memory goes with the thread block
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
