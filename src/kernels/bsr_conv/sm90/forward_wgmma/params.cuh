// What the Hopper kernel of a convolution gets beside what that of a product gets.
#pragma once

#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv {

/// Of the base, x is an im2col map, and values has the blocks of all taps: tap t of block b is block b taps +
/// t there.
struct Params : wgmma::forward::Params {
  PixelWalk walk;
};

}  // namespace sparseloom::kernels::cuda::wgmma_conv
