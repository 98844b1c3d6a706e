// The producers of wgmma::dw: four warps that share the copies of a step. Finding an item takes a few L2
// latencies, so they find the next one while the first copies of the current one are in flight; its copies
// then follow without a pause.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/schedule.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// A producer warp's position in the ring, which continues from segment to segment.
struct Ring {
  Pipeline pipeline;
  std::uint32_t stages;    // shared address
  int stage_bytes, count;  // bytes of a stage; number of stages
  int stage = 0;           // the next stage to fill
  int fresh = 0;           // stages that have been filled once
  Parities parities = {};  // of the empty barriers

  /// Waits until the stage is free.
  __device__ __forceinline__ void await() {
    if (fresh < count) {
      ++fresh;
      return;
    }
    pipeline.acquire(stage, parities.of(stage));
    parities.pass(stage);
  }
  __device__ __forceinline__ void advance() { stage = stage + 1 == count ? 0 : stage + 1; }
};

/// A warp's copies for each step of a segment. Producer warp i % kProducers copies box i of X.
template <class T>
struct Copies {
  Item item;
  Part part;
  std::int32_t column[T::kOwnBoxes];  // first columns of this warp's boxes of X
};

/// Finds the copies of the next segment; false: there are no more. Takes a few L2 latencies.
template <class T>
__device__ __forceinline__ bool find_copies(const Params& params, Agenda& agenda, Cursor& cursor,
                                            Copies<T>& copies) {
  if (!agenda.next(copies.part)) return false;
  copies.item = find_item(params, copies.part.item, cursor);
  const Item& item = copies.item;
  const int warp = threadIdx.x / 32 % 4, boxes = (item.blocks << params.bn_log2) / T::kBoxColumns;
#pragma unroll
  for (int i = 0; i < T::kOwnBoxes; ++i) {
    const int box = warp + i * T::kProducers, place = box * T::kBoxColumns;
    if (box >= boxes) continue;
    copies.column[i] = (__ldg(params.col + item.first + (place >> params.bn_log2)) << params.bn_log2) +
                       (place & ((1 << params.bn_log2) - 1));
  }
  return true;
}

/// Issues TMA for a segment's steps from `step` up to but not including `end`. With kFirst it also writes the
/// segment's record beside the stage of its first step.
template <class T, bool kFirst>
__device__ __forceinline__ void start_copies(const Params& params, const Copies<T>& copies, std::int32_t step,
                                             std::int32_t end, Ring& ring, const Agenda& agenda,
                                             Record* records) {
  const int warp = threadIdx.x / 32 % 4, boxes = (copies.item.blocks << params.bn_log2) / T::kBoxColumns;
  const int own_dy = T::kProducers - 1 - warp;  // the last warps have fewer boxes of X, so they copy dY
  std::uint32_t bytes = own_dy < T::kDyBoxes ? T::kDyBoxBytes : 0;
#pragma unroll
  for (int i = 0; i < T::kOwnBoxes; ++i) bytes += warp + i * T::kProducers < boxes ? T::kXBoxBytes : 0;
  std::int32_t row = (copies.part.first + step) * T::kStepRows;
#pragma unroll 1
  for (; step < end; ++step, row += T::kStepRows) {
    ring.await();
    if (ptx::elect_lane()) {
      const std::uint32_t full = ring.pipeline.full(ring.stage),
                          to = ring.stages + ring.stage * ring.stage_bytes;
      if (kFirst && step == 0 && warp == 0) {
        const Item& item = copies.item;
        const Part& part = copies.part;
        records[ring.stage] = {item.row, item.first, item.blocks, part.steps, part.slot, agenda.others(part)};
      }
      Pipeline::expect(full, bytes);
      if (own_dy < T::kDyBoxes) {
        T::Element::load(to + own_dy * T::kDyBoxBytes, &params.dy,
                         copies.item.row * T::kRows + own_dy * T::kDyBoxColumns, row, full);
      }
#pragma unroll
      for (int i = 0; i < T::kOwnBoxes; ++i) {
        const int box = warp + i * T::kProducers;
        if (box < boxes)
          T::Element::load(to + T::kDyBytes + box * T::kXBoxBytes, &params.x, copies.column[i], row, full);
      }
    }
    __syncwarp();
    ring.advance();
  }
}

/// The loop of one of the four producer warps.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared) {
  Ring ring{{shared.full, shared.empty}, ptx::shared_address(shared.ring), params.stage_bytes, params.stages};
  const std::int32_t grid = static_cast<std::int32_t>(gridDim.x);
  Agenda agenda(cut_items(count_items(params), grid, params.steps), static_cast<std::int32_t>(blockIdx.x),
                grid, params.steps);
  Cursor cursor;
  Copies<T> copies;
  bool more = find_copies<T>(params, agenda, cursor, copies);
#pragma unroll 1
  while (more) {
    // Fill the ring, then find the next segment while the ring is full: finding it after the last copy would
    // delay its own copies.
    const std::int32_t ahead = min(copies.part.steps, ring.count);
    start_copies<T, true>(params, copies, 0, ahead, ring, agenda, shared.records);
    Copies<T> next;
    more = find_copies<T>(params, agenda, cursor, next);
    start_copies<T, false>(params, copies, ahead, copies.part.steps, ring, agenda, shared.records);
    copies = next;
  }
  // Tell the consumers that there are no more segments.
  ring.await();
  if (ptx::elect_lane()) {
    if (threadIdx.x / 32 % 4 == 0) shared.records[ring.stage].blocks = 0;
    Pipeline::expect(ring.pipeline.full(ring.stage), 0);
  }
  __syncwarp();
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
