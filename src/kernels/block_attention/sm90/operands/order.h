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
  std::int32_t* next = nullptr;            // see TileOrder
};

/// order <- tiles with many blocks before those with few, for `slots` tiles that run at one time; equal ones
/// (in 64 classes) in their own order. Of up to six rounds all tiles are sorted. Of more, two rounds each,
/// since tiles of heads that lie further apart share no K and V in L2 (S 32768, blocks of 64 at .25: backward
/// 356 TF/s so, 274 sorted as a whole); but tiles of more than twice the mean, as the first keys of trained
/// models have, go before all, up to kLongRounds. One launch. Returns a cudaError_t.
int order_tiles(const OrderParams& params, std::int64_t slots, cudaStream_t stream) noexcept;

/// Gives the tiles to the teams of a launch. Who is done first gets the next one: dealt out beforehand, in
/// turn forwards and backwards, causal lists of 1 to 128 blocks left teams idle for a quarter of the time (S
/// 16384, blocks of 128). A tile's bits do not depend on the team.
struct TileOrder {
  const std::int32_t* order;  // null: as they are numbered, one for each team
  std::int32_t* next;         // the next position in the order; begins with the number of teams
  std::int32_t tiles;

  /// The next tile of team `slot`, or -1 behind the last. All lanes of a warp call it.
  __device__ __forceinline__ int take(bool starts, int slot) const {
    int position = slot;
    if (!starts) {
      if (order == nullptr) return -1;
      if (threadIdx.x % 32 == 0) position = atomicAdd(next, 1);
      position = __shfl_sync(0xffffffff, position, 0);
    }
    if (position >= tiles) return -1;
    return order != nullptr ? order[position] : position;
  }
};

/// Makes `to` the order of a launch of which `slots` tiles run at one time, in `params.work`, which has room
/// for two numbers a tile and one more; `params.order` and `params.next` are not read. As they are numbered
/// where all begin at once. Returns a cudaError_t.
inline int order_of(TileOrder& to, OrderParams params, std::int64_t slots, cudaStream_t stream) noexcept {
  to = {nullptr, nullptr, params.tiles};
  if (params.tiles <= slots) return cudaSuccess;
  params.order = params.work + params.tiles;
  params.next = params.order + params.tiles;
  if (const int status = order_tiles(params, slots, stream); status != cudaSuccess) return status;
  to.order = params.order;
  to.next = params.next;
  return cudaSuccess;
}

}  // namespace sparseloom::kernels::cuda::attention
