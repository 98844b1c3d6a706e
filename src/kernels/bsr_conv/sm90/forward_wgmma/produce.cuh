// The producers of a convolution: they find the K tiles of channels in which any block row of the tile stores
// a block, as those of a product do, and copy each once per tap: the pixels that meet the tile's pixels under
// the tap, by im2col, and the tap's parts of the blocks. Taps of a K tile are consecutive, so that their
// common pixels of x, all but the edges, come from L2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/forward_wgmma/params.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/union.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv {

using wgmma::forward::Place, wgmma::forward::Step;

/// Issues the copies of a stage, which must be free, and publishes its descriptor and the next one's.
template <class T>
__device__ __forceinline__ void start_copies(const Params& params, const Step& step, const Place& place,
                                             const ptx::BasePixel& pixel, const Taps& tap,
                                             std::uint32_t stage, std::uint32_t full,
                                             std::uint32_t (&record)[2], std::uint32_t own,
                                             std::uint32_t next) {
  static_assert(T::kKTiles == 1);
  // One lane issues the copies. First it gathers the other lanes' blocks.
  std::int32_t block[T::kBlockRows][T::kParts];
#pragma unroll
  for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part)
      block[block_row][part] = __shfl_sync(wgmma::forward::kWarp, step.block, block_row * T::kGroup + part);
  }
  if (!ptx::elect_lane()) return;
  record[1] = next;
  record[0] = own;
  const std::uint32_t parts = own & T::kAllParts;
  if (parts == 0) {  // a tile without any block
    Pipeline::expect(full, 0);
    return;
  }
  Pipeline::expect(full, T::kKTileBytes + __popc(parts) * T::kPartBytes);
  const std::int32_t channel = step.k_tile * T::kKTile;
  load_pixels(stage, &params.x, params.walk, channel, pixel, tap.offset(params.walk), full, params.x_policy);
  // The tile's offset in a block row that is wider than the tile.
  const std::int32_t output = place.output & ((1 << params.block_row_log2) - 1);
#pragma unroll
  for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      if ((parts & T::present(block_row, part)) == 0) continue;
      const std::uint32_t to = stage + T::kXBytes + (block_row * T::kStageParts + part) * T::kPartBytes;
      const std::int32_t from =
          block[block_row][part] * static_cast<std::int32_t>(params.walk.taps) + tap.number();
#pragma unroll
      for (int box = 0; box < T::kBoxes; ++box) {
        if constexpr (T::kIsDx) {
          ptx::tma_load_2d(to + box * T::kBoxBytes, &params.values, output + box * T::kBoxColumns,
                           ((from << params.side_log2) + step.column) / T::kRowsOfOne, full,
                           params.values_policy);
        } else {
          ptx::tma_load_2d(to, &params.values, step.column,
                           ((from << params.block_row_log2) + output) / T::kRowsOfOne, full,
                           params.values_policy);
        }
      }
    }
  }
}

/// The loop of one of the kProducers warps, which fills every kProducers-th stage.
template <class T>
__device__ __forceinline__ void produce(const Params& params, wgmma::forward::SharedStorage<T>& shared,
                                        int producer) {
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const Pipeline pipeline(shared.full, shared.empty);
  wgmma::forward::Tiles tiles(params);
  wgmma::forward::Union<T> k_tiles(params, tiles);
  unsigned turn = 0;
  // The descriptor of a step's stage; the tile ends with the last tap of its last step.
  const auto record_of = [](const Step& step, bool last_tap) {
    return last_tap ? step.record : step.record & ~T::kLast;
  };
  const auto taps_of = [&](const Step& step) {
    return (step.record & T::kAllParts) != 0 ? params.walk.taps : 1u;
  };
#pragma unroll 1
  for (; tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    const ptx::BasePixel pixel = base_pixel(params.walk, place.token);
    k_tiles.begin_tile();
    Step step = k_tiles.next(params);
#pragma unroll 1
    while (true) {
      const bool last = (step.record & T::kLast) != 0;
      Step ahead{};
      if (!last) ahead = k_tiles.next(params);
      const unsigned taps = taps_of(step);
      Taps tap;
#pragma unroll 1
      for (unsigned left = taps; left > 0; --left, ++turn) {
        const StageOf<T::kStages> stage(turn);
        if (turn % T::kProducers == static_cast<unsigned>(producer)) {
          std::uint32_t next = 0;
          if (left > 1) {
            next = record_of(step, left == 2);
          } else if (!last) {
            next = record_of(ahead, taps_of(ahead) == 1);
          }
          // Wait until the consumers have released the stage, then fill it.
          pipeline.acquire(stage.index, stage.parity ^ 1);
          start_copies<T>(params, step, place, pixel, tap, ring + stage.index * T::kStageBytes,
                          pipeline.full(stage.index), shared.record[stage.index], record_of(step, left == 1),
                          next);
          __syncwarp();
        }
        tap.advance(params.walk);
      }
      if (last) break;
      step = ahead;
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv
