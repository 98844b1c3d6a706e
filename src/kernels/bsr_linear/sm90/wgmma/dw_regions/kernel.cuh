// The kernel for dW[block] = sum over tokens of dY^T X at the stored blocks, region by region. It takes block
// sides of 16 and 32.
//
//             dY: 64-wide boxes that         X: 64-wide boxes that
//             stored blocks of the           stored blocks of the
//   tokens    region touch                   region touch
//     |       # # # # # #                    # # # # # #
//     v       # # # # # #                    # # # # # #
//
// The kernel is persistent: one thread block per multiprocessor takes work item after work item. An item is
// some strips of one region.
//
//   producers   Four warps issue TMA for 32 or 64 tokens.
//   consumers   Two warpgroups multiply every other strip each: X comes by ldmatrix, dY is read from the
//               stage.
//
// Block rows of 16 are multiplied by mma.sync in units of 16 x 16, and each warp has an eighth of an item's
// units. wgmma was rejected there: of its four fragments per block row, only 1.2 were stored in 384 columns
// at density .05. With units, an item holds three times as many blocks, and its region is larger in
// proportion.
//
// Regions form a fixed grid; they do not follow the pattern. The strips of each are counted on the device,
// and a region with more strips than an item holds is divided among several items. Items are cut along their
// tokens and added up as in wgmma/dw/kernel.cuh, so every run gives the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw_regions/consume.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// The position of the set bit number `index`.
__device__ __forceinline__ int place_of_bit(std::uint32_t bits, int index) {
  for (; index > 0; --index) bits &= bits - 1;
  return __ffs(static_cast<int>(bits)) - 1;
}

/// The loop of one of the four producer warps, which share the boxes of a stage. Warp 0 also lists each
/// item's strips.
template <class T>
__device__ __forceinline__ void produce_region(const RegionParams& params, RegionStorage<T>& shared) {
  const int warp = threadIdx.x / 32 % 4;
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  Parities parities;  // of the empty barriers
  // Count the items, and begin the thread block's agenda.
  if (warp == 0) {
    const std::int32_t grid = static_cast<std::int32_t>(gridDim.x);
    const Cut cut = cut_items(count_items(params, shared), grid, params.steps);
    if (threadIdx.x % 32 == 0)
      shared.agenda = Agenda(cut, static_cast<std::int32_t>(blockIdx.x), grid, params.steps);
    __syncwarp();
  }
#pragma unroll 1
  while (true) {
    // Find the next item and list its strips.
    ptx::named_barrier_sync<1, T::kThreads>();  // all warps have finished the previous item
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) {
        if (shared.agenda.next(shared.item.part))
          shared.item.others = shared.agenda.others(shared.item.part);
        else
          shared.item.part.steps = 0;
      }
      __syncwarp();
      if (shared.item.part.steps > 0) list_strips<T>(params, shared);
    }
    ptx::named_barrier_sync<1, T::kThreads>();  // the item is published to all warps
    const RegionItem item = shared.item;
    const Part& part = item.part;
    if (part.steps == 0) return;
    const int dy_boxes = __popc(item.row_boxes), boxes = dy_boxes + __popc(item.column_boxes);
    // The ring is divided anew for each item, by the number of boxes that it needs.
    const int stages = min(T::kMostStages, T::kRingBytes / (boxes * T::kBoxBytes));
    std::int32_t column[T::kOwnBoxes];
#pragma unroll
    for (int i = 0; i < T::kOwnBoxes; ++i) {
      const int box = warp + i * T::kProducers;
      column[i] =
          box < dy_boxes
              ? (item.down * params.row_boxes + place_of_bit(item.row_boxes, box)) * kBoxSide
              : (item.across * params.column_boxes + place_of_bit(item.column_boxes, box - dy_boxes)) *
                    kBoxSide;
    }
    const std::uint32_t bytes =
        static_cast<std::uint32_t>((boxes - warp + T::kProducers - 1) / T::kProducers) * T::kBoxBytes;

    int stage = 0;
    const std::int32_t steps = part.steps * T::kStagesOfStep;
    std::int32_t token = part.first * kStep16.tokens;
#pragma unroll 1
    for (std::int32_t step = 0; step < steps; ++step, token += T::kStageTokens) {
      // Wait until the consumers have freed the stage.
      if (step >= stages) {
        pipeline.acquire(stage, parities.of(stage));
        parities.pass(stage);
      }
      // Issue TMA for this warp's boxes.
      if (ptx::elect_lane()) {
        const std::uint32_t barrier = pipeline.full(stage), to = ring + stage * boxes * T::kBoxBytes;
        Pipeline::expect(barrier, bytes);
#pragma unroll
        for (int i = 0; i < T::kOwnBoxes; ++i) {
          const int box = warp + i * T::kProducers;
          if (box < boxes)
            ptx::tma_load_2d(to + box * T::kBoxBytes, box < dy_boxes ? &params.dy : &params.x, column[i],
                             token, barrier);
        }
      }
      __syncwarp();
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    // Wait for all stages, since the next item's stages have another size.
    for (int used = 0; used < min(steps, stages); ++used) {
      pipeline.acquire(used, parities.of(used));
      parities.pass(used);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    wgmma_dw_regions_kernel(const __grid_constant__ RegionParams params) {
  extern __shared__ __align__(1024) std::byte region_bytes[];
  auto& shared = *reinterpret_cast<RegionStorage<T>*>(region_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.dy);
    ptx::prefetch_tensor_map(&params.x);
    Pipeline::init(shared.full, shared.empty, T::kProducers, T::kConsumers * 4);
    ptx::fence_mbarrier_init();
  }
  count_regions<T>(params, shared);  // ends with a barrier of all threads

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the compiler sees it is uniform
  if (warpgroup == T::kConsumers) {
    ptx::release_registers_to<T::kProducerRegisters>();
    produce_region<T>(params, shared);
  } else {
    ptx::claim_registers_to<T::kConsumerRegisters>();
    consume_region<T>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
