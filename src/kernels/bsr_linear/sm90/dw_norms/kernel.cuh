// The norms of all blocks of dW = dY^T X, which is never stored: a dense product whose epilogue reduces the
// sums (shared/epilogue/block_norms.cuh).
//
//   tile        128 rows of dW (columns of dY) x 256 columns of dW (columns of X). The kernel is persistent:
//               a thread block takes tile after tile, and all tokens of each, since the norm of a sum is not
//               the sum of norms.
//   producer    One warp issues TMA for 64 tokens of the tile's columns of dY and X, in boxes 64 columns
//               wide.
//   consumers   Two warpgroups multiply 64 rows each by m64n256k16. Both operands are transposed on their
//               way into the tensor cores.
//
// Tiles are walked in strips of kStripTiles rows of tiles, so that concurrent tiles share columns of both
// operands in L2.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/element.cuh"
#include "kernels/shared/epilogue/block_norms.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma_norms {

constexpr int kRows = 128, kColumns = 256, kTokens = wgmma::dw::kStep16.tokens, kStages = 4, kStripTiles = 16;
constexpr int kBoxColumns = 64, kBoxBytes = kBoxColumns * kTokens * 2;
constexpr int kDyBoxes = kRows / kBoxColumns, kXBoxes = kColumns / kBoxColumns;
constexpr int kStageBytes = (kDyBoxes + kXBoxes) * kBoxBytes;
constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kCellRows = kRows / 8, kCellColumns = kColumns / 8;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
              (kConsumers + 1) * ptx::registers_at_launch(kThreads));
static_assert(kDyBoxes == kConsumers, "a warpgroup multiplies one box of dY");

/// The layout of the operands in the boxes of a stage, for wgmma's descriptors.
template <class Element>
struct Box {
  static constexpr std::uint64_t kDescriptor = Element::descriptor(kBoxColumns, kBoxBytes);
  static constexpr int kStep = Element::k_bytes(kBoxColumns) / 16;  // from 16 tokens to the next 16
};

/// Dynamic shared memory, which begins at a multiple of 1024.
struct SharedStorage {
  std::byte ring[kStages][kStageBytes];  // boxes of dY, boxes of X
  // Double-buffered: a warp may write the next tile's cells while others still read.
  float cells[2][kCellRows][kCellColumns];
  std::uint64_t full[kStages], empty[kStages];  // mbarriers
};

struct Params {
  CUtensorMap dy, x;  // boxes of kTokens x kBoxColumns
  NormGrid grid;
  BlockNorm norm;
  std::int32_t tile_rows, tile_cols;  // of the grid of tiles
  std::int32_t steps;                 // of kTokens tokens
};

struct TilePlace {
  std::int32_t row, col;  // of the grid of tiles
};

__device__ __forceinline__ TilePlace place_of(const Params& params, std::int32_t tile) {
  const std::int32_t strip_tiles = kStripTiles * params.tile_cols, strip = tile / strip_tiles,
                     inside = tile - strip * strip_tiles, top = strip * kStripTiles;
  const std::int32_t height = min(kStripTiles, params.tile_rows - top), col = inside / height;
  return {top + inside - col * height, col};
}

__device__ __forceinline__ void produce(const Params& params, SharedStorage& shared) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::int32_t tiles = params.tile_rows * params.tile_cols;
  unsigned turn = 0;
#pragma unroll 1
  for (std::int32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePlace place = place_of(params, tile);
#pragma unroll 1
    for (std::int32_t step = 0; step < params.steps; ++step, ++turn) {
      const StageOf<kStages> stage(turn);
      pipeline.acquire(stage.index, stage.parity ^ 1);
      if (ptx::elect_lane()) {
        const std::uint32_t full = pipeline.full(stage.index),
                            to = ptx::shared_address(shared.ring[stage.index]);
        Pipeline::expect(full, kStageBytes);
#pragma unroll
        for (int box = 0; box < kDyBoxes; ++box)
          ptx::tma_load_2d(to + box * kBoxBytes, &params.dy, place.row * kRows + box * kBoxColumns,
                           step * kTokens, full);
#pragma unroll
        for (int box = 0; box < kXBoxes; ++box)
          ptx::tma_load_2d(to + (kDyBoxes + box) * kBoxBytes, &params.x,
                           place.col * kColumns + box * kBoxColumns, step * kTokens, full);
      }
      __syncwarp();
    }
  }
}

/// Writes the norms of a tile, whose sums both warpgroups hold.
template <BlockNorm kNorm>
__device__ __forceinline__ void finish_tile(const Params& params, float (&cells)[kCellRows][kCellColumns],
                                            const TilePlace& place, const float (&sums)[kColumns / 2]) {
  // A warp has two rows of cells, for the sums' rows t / 4 and t / 4 + 8.
  float own[2 * kCellColumns];
#pragma unroll
  for (int i = 0; i < 2 * kCellColumns; ++i) {
    const int at = i % kCellColumns * 4 + i / kCellColumns * 2;
    own[i] = NormSum<kNorm>::of(sums[at], sums[at + 1]);
  }
  join_lanes<kNorm, 2 * kCellColumns>(own);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  *reinterpret_cast<float2*>(&cells[2 * warp + lane / 16][lane % 16 * 2]) = make_float2(own[0], own[1]);
  const auto sync = [] { ptx::named_barrier_sync<1, kConsumers * 128>(); };
  sync();
  const int row_shift = params.grid.row_shift, col_shift = params.grid.col_shift;
  join_cells<kNorm, kConsumers * 128>(cells, params.grid, std::int64_t{place.row} * (kCellRows >> row_shift),
                                      std::int64_t{place.col} * (kCellColumns >> col_shift), threadIdx.x,
                                      sync);
}

template <class Element>
__device__ __forceinline__ void consume(const Params& params, SharedStorage& shared, int warpgroup) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::wgmma_address(ptx::shared_address(shared.ring));
  const std::int32_t tiles = params.tile_rows * params.tile_cols;
  const int lane = threadIdx.x % 32;
  unsigned turn = 0;
  int parity = 0;
#pragma unroll 1
  for (std::int32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, parity ^= 1) {
    float sums[kColumns / 2] = {};
#pragma unroll 1
    for (std::int32_t step = 0; step < params.steps; ++step, ++turn) {
      const StageOf<kStages> stage(turn);
      pipeline.wait(stage.index, stage.parity);
      __syncwarp();
      // Issue the wgmmas of the stage.
      const std::uint32_t dy = ring + stage.index * (kStageBytes / 16) + warpgroup * (kBoxBytes / 16);
      const std::uint32_t x = ring + stage.index * (kStageBytes / 16) + kDyBoxes * (kBoxBytes / 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k)
        Element::mma(sums, Box<Element>::kDescriptor | (dy + k * Box<Element>::kStep),
                     Box<Element>::kDescriptor | (x + k * Box<Element>::kStep));
      ptx::wgmma_commit();
      // Release the previous stage: its wgmmas have ended once only those just issued remain.
      ptx::wgmma_wait<1>();
      __syncwarp();
      if (step > 0 && lane == 0) pipeline.release(StageOf<kStages>(turn - 1).index);
    }
    ptx::wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) pipeline.release(StageOf<kStages>(turn - 1).index);
    ptx::pin(sums);
    // Reduce the sums while the producer fills the stages of the next tile.
    const TilePlace place = place_of(params, tile);
    switch (params.norm) {
      case BlockNorm::l1: finish_tile<BlockNorm::l1>(params, shared.cells[parity], place, sums); break;
      case BlockNorm::l2: finish_tile<BlockNorm::l2>(params, shared.cells[parity], place, sums); break;
      case BlockNorm::max: finish_tile<BlockNorm::max>(params, shared.cells[parity], place, sums); break;
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, 1) wgmma_norms_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.dy);
    ptx::prefetch_tensor_map(&params.x);
    Pipeline::init(shared.full, shared.empty, 1, kConsumers * 4);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  const int warpgroup =
      __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells the compiler that it is uniform
  if (warpgroup == kConsumers) {
    ptx::release_registers_to<kProducerRegisters>();
    if (__shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0) == 0) produce(params, shared);
  } else {
    ptx::claim_registers_to<kConsumerRegisters>();
    consume<Element>(params, shared, warpgroup);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_norms
