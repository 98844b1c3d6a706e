// The producers: warps that visit the K tiles in which any block row of the tile stores a block. For each
// they issue TMA copies of x's K tile, once, and of the parts that are present. Each of the kProducers warps
// fills every kProducers-th stage.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/union.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// Issues the copies of a stage, which must be free. `steps` are the stage's K tiles; those past the tile's
/// last one are empty. A tile without any block takes one stage whose descriptor has no part.
template <class T>
__device__ __forceinline__ void start_copies(const Params& params, const Step (&steps)[T::kKTiles],
                                             const Place& place, std::uint32_t stage, std::uint32_t full,
                                             std::uint32_t (&record)[2], std::uint32_t next,
                                             [[maybe_unused]] std::int32_t* origin) {
  // One lane issues the copies. First it gathers the other lanes' blocks.
  std::int32_t row[T::kKTiles][T::kBlockRows][T::kParts];
  std::uint32_t parts = 0, bytes = 0;
#pragma unroll
  for (int k_tile = 0; k_tile < T::kKTiles; ++k_tile) {
    const std::uint32_t present = steps[k_tile].record & T::kAllParts;
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part)
        row[k_tile][block_row][part] = __shfl_sync(kWarp, steps[k_tile].block, block_row * T::kGroup + part);
    }
    parts |= present << (k_tile * T::kParts);
    if (present != 0) bytes += T::kKTileBytes;
  }
  if (!ptx::elect_lane()) return;
  if constexpr (T::Element::kBf16x3) {
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row)
      origin[block_row] =
          (row[0][block_row][0] << (params.side_log2 - T::kKTileLog2)) + steps[0].column / T::kKTile;
  }
  // Publish the stage descriptors.
  record[1] = next;
  record[0] = parts | (steps[T::kKTiles - 1].record & ~T::kAllParts);
  // Announce the bytes on `full`; without any, arrive alone.
  if (parts == 0) {
    Pipeline::expect(full, 0);
    return;
  }
  Pipeline::expect(full, bytes + __popc(parts) * T::kPartBytes);
  // The tile's offset in a block row that is wider than the tile.
  const std::int32_t output = place.output & ((1 << params.block_row_log2) - 1);
#pragma unroll
  for (int k_tile = 0; k_tile < T::kKTiles; ++k_tile) {
    const Step& step = steps[k_tile];
    if ((step.record & T::kAllParts) == 0) break;
    // Issue TMA for x's K tile.
    ptx::tma_load_2d(stage + k_tile * T::kKTileBytes, &params.x, step.k_tile * T::kKTile, place.token, full,
                     params.x_policy);
    // Issue TMA for the parts that are present.
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        const int index = k_tile * T::kParts + part;
        if ((parts & T::present(block_row, index)) == 0) continue;
        const std::uint32_t to = stage + T::kXBytes + (block_row * T::kStageParts + index) * T::kPartBytes;
        const std::int32_t from = row[k_tile][block_row][part];
        if constexpr (T::Element::kBf16x3) {
          const std::int64_t part_of_all =
              (from << (params.side_log2 - T::kKTileLog2)) + step.column / T::kKTile;
          const std::byte* const planes = params.planes + (part_of_all << params.block_row_log2) * (3 * 64);
          if (1 << params.block_row_log2 == T::kSlice) {
            ptx::bulk_load(to, planes, T::kPartBytes, full, params.values_policy);
          } else {  // the tile has half of the block row: half of each plane
#pragma unroll
            for (int plane = 0; plane < 3; ++plane) {
              ptx::bulk_load(to + plane * T::kPlaneBytes,
                             planes + ((plane << params.block_row_log2) + output) * 64, T::kPlaneBytes, full,
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
              const bool factors = T::kGlu && block_row % 2 == 1;
              ptx::tma_load_2d(to, factors ? &params.factor_values : &params.values, step.column,
                               ((from << params.block_row_log2) + output) / T::kRowsOfOne, full,
                               params.values_policy);
            }
          }
        }
      }
    }
  }
}

/// The loop of one of the kProducers warps. Per stage it takes 500 clocks, mostly dependent latencies, plus
/// 60 to 100 clocks per box. With a single producer, or with four that shared the boxes of each stage, the
/// producers were the bottleneck of blocks of 32.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared, int producer) {
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const Pipeline pipeline(shared.full, shared.empty);
  Tiles tiles(params);
  Union<T> k_tiles(params, tiles);
  unsigned turn = 0;
#pragma unroll 1
  for (; tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    k_tiles.begin_tile();
#pragma unroll 1
    do {
      const StageOf<T::kStages> stage(turn);
      if (turn % T::kProducers == static_cast<unsigned>(producer)) {
        // Find the K tiles of this stage.
        Step steps[T::kKTiles];
#pragma unroll
        for (Step& step : steps) step = k_tiles.next(params);
        std::uint32_t next = 0;
        // Another producer fills the next stage; this one only computes its descriptor, which consumers read
        // a stage ahead.
        if (!k_tiles.ended()) {
          ++turn;
#pragma unroll
          for (int k_tile = 0; k_tile < T::kKTiles; ++k_tile) {
            const std::uint32_t record = k_tiles.next_record(params);
            next =
                next & ~T::kLast | (record & T::kAllParts) << (k_tile * T::kParts) | (record & ~T::kAllParts);
          }
        }
        // Wait until the consumers have released the stage, then fill it.
        pipeline.acquire(stage.index, stage.parity ^ 1);
        start_copies<T>(params, steps, place, ring + stage.index * T::kStageBytes, pipeline.full(stage.index),
                        shared.record[stage.index], next,
                        shared.origin[T::Element::kBf16x3 ? stage.index : 0]);
        __syncwarp();
      } else {
        // Another producer fills this stage.
#pragma unroll
        for (int k_tile = 0; k_tile < T::kKTiles; ++k_tile) k_tiles.skip(params);
      }
      ++turn;
    } while (!k_tiles.ended());
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
