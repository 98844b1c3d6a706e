// The types of the tiles that tiles.h lists.
#pragma once

#include "kernels/bsr_linear/sm80/mma/forward/tile.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/tiles.h"

namespace sparseloom::kernels::cuda::mma::forward {

/// The tile kTiles[kIndex] of an element type.
template <class Element, int kIndex>
using TileAt =
    Tile<Element, kTiles[kIndex].block_row, kTiles[kIndex].tokens, kTiles[kIndex].chunk_bytes,
         kTiles[kIndex].warps_m, kTiles[kIndex].warps_n, kTiles[kIndex].stages, kTiles[kIndex].blocks_per_sm>;

}  // namespace sparseloom::kernels::cuda::mma::forward
