// The producers: warps that pass over the slabs which any line of the tile stores, and start the copies of
// every kProducers-th stage each: x's slab once, and the parts of the lines that have it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/sm90/bulk.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"
#include "kernels/cuda/sm90/wgmma_dds_union.cuh"
#include "kernels/cuda/sm90/wgmma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// Starts the copies of a stage's steps, of which those behind the last of a tile are empty; the stage is
/// free. A tile without any block is one empty record.
template <class T>
__device__ __forceinline__ void start_copies(const Params& params, const Step (&steps)[T::kSlabs],
                                             const Place& place, std::uint32_t stage, std::uint32_t full,
                                             std::uint32_t (&record)[2], std::uint32_t next,
                                             [[maybe_unused]] std::int32_t* origin) {
  // By one lane: the others' coordinates are gathered first.
  std::int32_t row[T::kSlabs][T::kLines][T::kParts];
  std::uint32_t parts = 0, bytes = 0;
#pragma unroll
  for (int slab = 0; slab < T::kSlabs; ++slab) {
    const std::uint32_t present = steps[slab].record & T::kAllParts;
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part)
        row[slab][line][part] = __shfl_sync(kWarp, steps[slab].block, line * T::kGroup + part);
    }
    parts |= present << (slab * T::kParts);
    if (present != 0) bytes += T::kSlabBytes;
  }
  if (!ptx::elect_lane()) return;
  if constexpr (T::Element::kSplit) {
#pragma unroll
    for (int line = 0; line < T::kLines; ++line)
      origin[line] = (row[0][line][0] << (params.side_log2 - T::kSlabLog2)) + steps[0].column / T::kSlab;
  }
  record[1] = next;
  record[0] = parts | (steps[T::kSlabs - 1].record & ~T::kAllParts);
  if (parts == 0) {
    ptx::mbarrier_arrive(full);
    return;
  }
  ptx::mbarrier_arrive_expect_tx(full, bytes + __popc(parts) * T::kPartBytes);
  const std::int32_t output =
      place.output & ((1 << params.line_log2) - 1);  // within a line that is wider than the tile
#pragma unroll
  for (int slab = 0; slab < T::kSlabs; ++slab) {
    const Step& step = steps[slab];
    if ((step.record & T::kAllParts) == 0) break;
    ptx::tma_load_2d(stage + slab * T::kSlabBytes, &params.x, step.slab * T::kSlab, place.token, full,
                     params.x_policy);
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        const int index = slab * T::kParts + part;
        if ((parts & T::present(line, index)) == 0) continue;
        const std::uint32_t to = stage + T::kXBytes + (line * T::kStageParts + index) * T::kPartBytes;
        const std::int32_t from = row[slab][line][part];
        if constexpr (T::Element::kSplit) {
          const std::int64_t part_of_all =
              (from << (params.side_log2 - T::kSlabLog2)) + step.column / T::kSlab;
          const std::byte* const planes = params.planes + (part_of_all << params.line_log2) * (3 * 64);
          if (1 << params.line_log2 == T::kSlice) {
            ptx::bulk_load(to, planes, T::kPartBytes, full, params.values_policy);
          } else {  // half of each plane
#pragma unroll
            for (int plane = 0; plane < 3; ++plane) {
              ptx::bulk_load(to + plane * T::kPlaneBytes,
                             planes + ((plane << params.line_log2) + output) * 64, T::kPlaneBytes, full,
                             params.values_policy);
            }
          }
        } else {
#pragma unroll
          for (int box = 0; box < T::kBoxes; ++box) {
            if constexpr (T::kIsDx) {
              ptx::tma_load_2d(to + box * T::kBoxBytes, &params.values, output + box * T::kBoxColumns,
                               ((from << params.side_log2) + step.column) / T::kRowsOfOne, full,
                               params.values_policy);
            } else {
              ptx::tma_load_2d(to, &params.values, step.column,
                               ((from << params.line_log2) + output) / T::kRowsOfOne, full,
                               params.values_policy);
            }
          }
        }
      }
    }
  }
}

/// One warp of kProducers. What it does for a stage takes 500 clocks that mostly wait for one another, and 60
/// to 100 for each box: one warp, or four that shared each stage's boxes, were what blocks of 32 waited for.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared, int producer) {
  const std::uint32_t ring = ptx::shared_address(shared.ring), full = ptx::shared_address(shared.full),
                      empty = ptx::shared_address(shared.empty);
  Tiles tiles(params);
  Union<T> slabs(params, tiles);
  unsigned turn = 0;
#pragma unroll 1
  for (; tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    slabs.begin_tile();
#pragma unroll 1
    do {
      const unsigned stage = turn % T::kStages, parity = turn / T::kStages % 2;
      if (turn % T::kProducers == static_cast<unsigned>(producer)) {
        Step steps[T::kSlabs];
#pragma unroll
        for (Step& step : steps) step = slabs.next(params);
        std::uint32_t next = 0;
        if (!slabs.ended()) {  // the stage behind is another producer's
          ++turn;
#pragma unroll
          for (int slab = 0; slab < T::kSlabs; ++slab) {
            const std::uint32_t record = slabs.next_record(params);
            next =
                next & ~T::kLast | (record & T::kAllParts) << (slab * T::kParts) | (record & ~T::kAllParts);
          }
        }
        ptx::mbarrier_wait(empty + stage * 8, parity ^ 1);
        start_copies<T>(params, steps, place, ring + stage * T::kStageBytes, full + stage * 8,
                        shared.record[stage], next, shared.origin[T::Element::kSplit ? stage : 0]);
        __syncwarp();
      } else {
#pragma unroll
        for (int slab = 0; slab < T::kSlabs; ++slab) slabs.skip(params);
      }
      ++turn;
    } while (!slabs.ended());
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
