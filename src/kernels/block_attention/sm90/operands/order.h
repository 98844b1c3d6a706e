// The order in which tiles are computed: those with long lists first, so that multiprocessors end together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block_attention/cuda/sequence.cuh"

namespace sparseloom::kernels::cuda::attention {

/// The tiles of a launch: blocks of one side, of each head of that side.
struct OrderParams {
  Common common;                           // its lists are those of the tiles
  std::int32_t tiles, blocks, heads;       // blocks of a head; heads of the tiles' side
  std::int32_t lists_per_tile;             // query heads that a tile walks over
  std::int32_t tile_tokens, other_tokens;  // of a tile, and of a block that its list names
  bool of_queries;                         // the tiles are blocks of queries
  std::int32_t *work, *order;              // [tiles] each
};

/// order <- tiles with many blocks before those with few, for `slots` tiles that run at one time; equal ones
/// (in 64 classes) in their own order. Of up to six rounds all tiles are sorted. Of more, two rounds each,
/// which the order of rounds below evens out, since tiles of heads that lie further apart share no K and V in
/// L2 (S 32768, blocks of 64 at .25: backward 356 TF/s so, 274 sorted as a whole); but tiles of more than
/// twice the mean, as the first keys of trained models have, go before all, up to kLongRounds. One launch.
/// Returns a cudaError_t.
int order_tiles(const OrderParams& params, std::int64_t slots, cudaStream_t stream) noexcept;

/// The tile that team `slot` of `slots` computes in round `round`, or -1; ends() after the last round. Every
/// other round runs backwards, so that who had the longest list of a round has the shortest of the next.
struct TileOrder {
  const std::int32_t* order;  // null: as they are numbered
  std::int32_t tiles;
  __device__ __forceinline__ bool ends(int round, int slots) const {
    return std::int64_t{round} * slots >= tiles;
  }
  __device__ __forceinline__ int tile(int round, int slot, int slots) const {
    const int position = round * slots + (round % 2 == 0 ? slot : slots - 1 - slot);
    if (position >= tiles) return -1;
    return order != nullptr ? order[position] : position;
  }
};

/// Makes `to` the order of a launch of which `slots` tiles run at one time, in `params.work`, which has room
/// for two numbers a tile; `params.order` is not read. As they are numbered where all begin at once. Returns
/// a cudaError_t.
inline int order_of(TileOrder& to, OrderParams params, std::int64_t slots, cudaStream_t stream) noexcept {
  to = {nullptr, params.tiles};
  if (params.tiles <= slots) return cudaSuccess;
  params.order = params.work + params.tiles;
  if (const int status = order_tiles(params, slots, stream); status != cudaSuccess) return status;
  to.order = params.order;
  return cudaSuccess;
}

}  // namespace sparseloom::kernels::cuda::attention
