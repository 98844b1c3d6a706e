// The consumers of wgmma::dw: two warpgroups, each of which multiplies every other strip of the work item,
// the same ones in every step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/parts.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/store.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

// Each strip is a commit group of its own: a commit behind the branch would become an empty wgmma
// (wgmma/forward/consume.cuh).

/// sums += x^T dy of one step. `x` is this warpgroup's first strip; `x` and `dy` are shared addresses / 16.
template <class T>
__device__ __forceinline__ void multiply_step(Sums<T>& sums, std::uint32_t x, std::uint32_t dy, int strips) {
  ptx::wgmma_fence();
#pragma unroll
  for (int strip = 0; strip < T::kWarpgroupStrips; ++strip) {
    if (strip >= strips) break;
#pragma unroll
    for (int k = 0; k < T::kStep.products; ++k) {
      T::Element::mma(
          sums[strip],
          T::kDescriptorX | (x + strip * (T::kConsumers * T::kStripBytes / 16) + k * (T::kXKBytes / 16)),
          T::kDescriptorDy | (dy + k * (T::kDyKBytes / 16)));
    }
    ptx::wgmma_commit();
  }
}

/// parts = x^T dy of one step: the six products of the bf16 planes of fp32 (bf16x3).
template <class T>
__device__ __forceinline__ void multiply_planes(Sums<T>& parts, std::uint32_t x, std::uint32_t dy,
                                                int strips) {
  constexpr int kEach = T::kStep.products / T::Element::kProducts;  // wgmmas per product of two planes
  ptx::wgmma_fence();
#pragma unroll
  for (int strip = 0; strip < T::kWarpgroupStrips; ++strip) {
    if (strip >= strips) break;
    const std::uint32_t from = x + strip * (T::kConsumers * T::kStripBytes / 16);
#pragma unroll
    for (int i = 0; i < T::kStep.products; ++i) {
      constexpr auto offset = [](int plane, int plane_bytes, int k, int k_bytes) {
        return (plane * plane_bytes + k * k_bytes) / 16;
      };
      const auto planes = T::Element::product(i / kEach);
      T::Element::mma(
          parts[strip], T::kDescriptorX | (from + offset(planes.x, T::kXPlaneBytes, i % kEach, T::kXKBytes)),
          T::kDescriptorDy | (dy + offset(planes.dy, T::kDyPlaneBytes, i % kEach, T::kDyKBytes)), i > 0);
    }
    ptx::wgmma_commit();
  }
}

/// sums += parts, after the tensor cores have finished the parts.
template <class T>
__device__ __forceinline__ void add_up(Sums<T>& sums, Sums<T>& parts, int strips) {
#pragma unroll
  for (int strip = 0; strip < T::kWarpgroupStrips; ++strip) {
    if (strip >= strips) break;
    ptx::pin(parts[strip]);
#pragma unroll
    for (int i = 0; i < T::kStripSums; ++i) sums[strip][i] += parts[strip][i];
  }
}

/// Lane 0 reads the record and also releases the stage, which orders the read before the producer's next
/// write. A shuffle broadcasts the record, and tells the compiler that branches on it are uniform.
__device__ __forceinline__ Record read_record(std::uint32_t record) {
  const auto word = [&](int i) {
    return static_cast<std::int32_t>(
        __shfl_sync(0xffffffff, threadIdx.x % 32 == 0 ? ptx::ld_shared_b32(record + i * 4) : 0, 0));
  };
  return {word(0), word(1), word(2), word(3), word(4), {word(5), word(6), word(7), word(8)}};
}

/// The loop of one of the two warpgroups.
template <class T, class P>
__device__ __forceinline__ void consume(const P& params, SharedStorage<T>& shared, int warpgroup) {
  const int lane = threadIdx.x % 32;
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::wgmma_address(ptx::shared_address(shared.ring));
  const std::uint32_t staging = ptx::shared_address(shared.staging[threadIdx.x / 32]);
  const int stage_bytes = params.stage_bytes, stages = params.stages;
  Parities parities;  // of the full barriers
  int stage = 0;

#pragma unroll 1
  while (true) {
    // The stage is the same in all lanes. The reduction leaves it in a uniform register; without that, ptxas
    // assumes that lanes may leave the loop one by one, and each wgmma waits for moves of its descriptors to
    // uniform registers (measured slower).
    stage = static_cast<int>(__reduce_or_sync(0xffffffff, static_cast<unsigned>(stage)));
    // Wait for the segment's first stage and read its record.
    pipeline.wait(stage, parities.of(stage));
    parities.pass(stage);
    const Record record = read_record(ptx::shared_address(&shared.records[stage]));
    // The vote tells ptxas that all lanes leave together. Without it, each lane keeps the loop's addresses,
    // and each wgmma waits for four moves to the uniform registers that hold its descriptors.
    if (__all_sync(0xffffffff, record.blocks == 0)) return;
    const int strips = ((record.blocks << params.bn_log2) + kStripColumns - 1) / kStripColumns;
    const int own_strips = (strips + 1 - warpgroup) / T::kConsumers;
    Sums<T> sums = {}, parts = {};  // parts: used by kPromoted only
#pragma unroll 1
    for (std::int32_t step = 0; step < record.steps; ++step) {
      // Issue the wgmmas of the stage.
      const std::uint32_t dy = ring + stage * (stage_bytes / 16);
      const std::uint32_t x = dy + (T::kDyBytes + warpgroup * T::kStripBytes) / 16;
      if constexpr (T::Element::kPromoted) {
        multiply_planes<T>(parts, x, dy, own_strips);
      } else {
        multiply_step<T>(sums, x, dy, own_strips);
      }
      // Test during the products whether the next stage has landed. Waiting for it now would delay the
      // release of this stage.
      const int multiplied_stage = stage;
      const bool last = step + 1 == record.steps;
      stage = stage + 1 == stages ? 0 : stage + 1;
      const bool ready = last || __all_sync(0xffffffff, pipeline.test(stage, parities.of(stage)));
      // Release the stage to the producers.
      ptx::wgmma_wait<0>();
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) pipeline.release(multiplied_stage);
      if constexpr (T::Element::kPromoted) add_up<T>(sums, parts, own_strips);
      if (last) break;
      // Wait for the next stage.
      if (!ready) pipeline.wait(stage, parities.of(stage));
      parities.pass(stage);
      __syncwarp();
    }
#pragma unroll
    for (auto& strip : sums) ptx::pin(strip);

    // Leave the sums for another thread block, or add the other segments' sums and store the result.
    const int chunks = own_strips * T::kStripChunks;
    if (record.slot >= 0) {
      leave_part<T>(params, record.slot, warpgroup, chunks, sums);
      continue;
    }
    await_parts<T>(params, record.others);
#pragma unroll
    for (int first = 0; first < T::kChunks; first += kChunksAtOnce) {
      if (first >= chunks) break;
      float y[kChunksAtOnce][16] = {};
#pragma unroll
      for (int c = 0; c < kChunksAtOnce && first + c < T::kChunks; ++c) chunk_of<T>(sums, first + c, y[c]);
      add_parts<T>(params, record.others, warpgroup, first, chunks, y);
#pragma unroll
      for (int c = 0; c < kChunksAtOnce; ++c) {
        const int chunk = first + c;
        if (chunk >= chunks) break;
        store_chunk<T>(params, record, staging, chunk / T::kStripChunks * T::kConsumers + warpgroup,
                       chunk % T::kStripChunks, y[c]);
      }
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
