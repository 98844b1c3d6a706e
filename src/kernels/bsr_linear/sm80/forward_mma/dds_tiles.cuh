// The tiles that mma_dds is compiled for.
//
// They are bound by the bandwidth from L2 to the multiprocessors, which does not depend on the rows' length
// (measured in all tiles from 16 x 128 to 128 x 128; tensor cores would allow more). So the bytes per product
// decide: block row x tokens outputs cost block row + tokens, and blocks of 64 and 128 take 64 x 64 warp
// tiles, which reuse operands in registers most.
#pragma once

#include "kernels/bsr_linear/sm80/forward_mma/dds_tile.cuh"

namespace sparseloom::kernels::cuda::dds {

/// Tiles by the block's side along the outputs; the launcher chooses one by predicted time. Narrow is for
/// small batches and for little shared memory.
template <class Element, int kBlockRow>
struct Tiles;
template <class Element>
struct Tiles<Element, 8> {
  using Wide = Tile<Element, 8, 128, 128, 4, 1, 4, 3>;
  using Middle = Wide;
  using Narrow = Wide;
};
template <class Element>
struct Tiles<Element, 16> {
  using Wide = Tile<Element, 16, 256, 128, 8, 1, 3, 2>;
  using Middle = Wide;
  using Narrow = Tile<Element, 16, 128, 128, 4, 1, 4, 3>;
};
template <class Element>
struct Tiles<Element, 32> {
  using Wide = Tile<Element, 32, 256, 128, 8, 1, 3, 2>;
  using Middle = Wide;
  using Narrow = Tile<Element, 32, 64, 128, 4, 1, 4, 4>;
};
template <class Element>
struct Tiles<Element, 64> {
  using Wide = Tile<Element, 64, 256, 64, 4, 1, 4, 2>;  // 128 bytes of k would leave two stages only
  using Middle = Wide;
  using Narrow = Tile<Element, 64, 64, 128, 2, 2, 4, 3>;
};
template <class Element>
struct Tiles<Element, 128> {
  using Wide = Tile<Element, 128, 256, 128, 4, 2, 4, 1>;
  using Middle = Tile<Element, 128, 128, 128, 2, 2, 3, 2>;
  using Narrow = Tile<Element, 128, 64, 128, 2, 2, 4, 2>;
};

}  // namespace sparseloom::kernels::cuda::dds
