// The producers: four warps that share the copies of a step. They find the items, which takes a few L2 latencies each, while the
// last copies of the one before are under way.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_schedule.cuh"
#include "kernels/cuda/sm90/wgmma_sdd_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// A warp's view of the ring. Every end of a barrier's phase is awaited once, so its parity is one bit that turns with each wait.
struct Ring {
  std::uint32_t stages, full, empty;  // shared addresses
  unsigned parities = 0;              // of the empty barriers
  int used = 0;                       // stages filled and not yet known to be free again

  __device__ __forceinline__ void await(int stage) {
    ptx::mbarrier_wait(empty + stage * 8, parities >> stage & 1);
    parities ^= 1u << stage;
  }
  /// Until all is free: stages of the next item are of another size. It costs one step's products, twice a hundred steps.
  __device__ __forceinline__ void drain() {
    for (int stage = 0; stage < used; ++stage) await(stage);
    used = 0;
  }
};

/// Starts the copies of one item's steps. Box i of X is the part of producer warp i % kProducers.
template <class T>
__device__ __forceinline__ void fill(const Params& params, const Record& record, std::int32_t first_step, Ring& ring,
                                     Record* shared_record) {
  const int warp = threadIdx.x / 32 % 4;
  const int gathered = record.blocks << params.bn_log2, boxes = gathered / T::kBoxColumns;
  const int stage_bytes = T::stage_bytes((gathered + kStripColumns - 1) / kStripColumns);
  const int stages = min(T::kMostStages, kRingBytes / stage_bytes);
  const int own_dy = T::kProducers - 1 - warp;  // the last warps have fewer boxes of X
  std::int32_t column[T::kOwnBoxes];
  std::uint32_t bytes = own_dy < T::kDyBoxes ? T::kDyBoxBytes : 0;
#pragma unroll
  for (int i = 0; i < T::kOwnBoxes; ++i) {
    const int box = warp + i * T::kProducers, place = box * T::kBoxColumns;
    if (box >= boxes) continue;
    column[i] =
        (__ldg(params.col + record.first + (place >> params.bn_log2)) << params.bn_log2) + (place & ((1 << params.bn_log2) - 1));
    bytes += T::kXBoxBytes;
  }

  ring.drain();
  int stage = 0;
  std::int32_t row = first_step * T::kStepRows;
#pragma unroll 1
  for (std::int32_t step = 0; step < record.steps; ++step, row += T::kStepRows) {
    if (step >= stages) ring.await(stage);
    if (ptx::elect_lane()) {
      const std::uint32_t full = ring.full + stage * 8, to = ring.stages + stage * stage_bytes;
      if (step == 0 && warp == 0) *shared_record = record;
      if (bytes == 0) {
        ptx::mbarrier_arrive(full);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, bytes);
      }
      if (own_dy < T::kDyBoxes) {
        T::Element::load(to + own_dy * T::kDyBoxBytes, &params.dy, record.row * T::kRows + own_dy * T::kDyBoxColumns, row, full);
      }
#pragma unroll
      for (int i = 0; i < T::kOwnBoxes; ++i) {
        const int box = warp + i * T::kProducers;
        if (box < boxes) T::Element::load(to + T::kDyBytes + box * T::kXBoxBytes, &params.x, column[i], row, full);
      }
    }
    __syncwarp();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  ring.used = min(record.steps, stages);
}

/// One of the four warps.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared) {
  Ring ring{ptx::shared_address(shared.ring), ptx::shared_address(shared.full), ptx::shared_address(shared.empty)};
  const std::int32_t grid = static_cast<std::int32_t>(gridDim.x);
  Agenda agenda(cut_items(count_items(params), grid, params.steps), static_cast<std::int32_t>(blockIdx.x), grid, params.steps);
  Cursor cursor;
  Part part;
  Slots others;
#pragma unroll 1
  while (agenda.next(part, others)) {
    const Item item = find_item(params, part.item, cursor);
    fill<T>(params, {item.row, item.first, item.blocks, part.steps, part.slot, others}, part.first, ring, &shared.record);
  }
  ring.drain();
  if (ptx::elect_lane()) {
    if (threadIdx.x / 32 % 4 == 0) shared.record.blocks = 0;
    ptx::mbarrier_arrive(ring.full);
  }
  __syncwarp();
}

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
