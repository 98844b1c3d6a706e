// The parameters that the Hopper kernel of a convolution adds to those of a product's.
#pragma once

#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv {

/// In the base, x is an im2col map, and values has the blocks of all taps: tap t of block b is block b taps +
/// t.
struct Params : wgmma::forward::Params {
  PixelWalk walk;
};

}  // namespace sparseloom::kernels::cuda::wgmma_conv
