// The kernel parameters of forward_mma, and the work of a thread block. "Output" and "block row" are those of
// the product: in dx, dx's channels and the block columns of W.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/cuda/pixel.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/epilogue.cuh"

namespace sparseloom::kernels::cuda::conv_forward {

using mma::forward::Dx, mma::forward::Forward, mma::forward::kIsDx;

/// In the base, a is the gathered tensor: x [pixels, a_width], in dx dy. values is [blocks][taps][bm, bn].
struct Params : mma::forward::Params {
  Axis axis[3];  // the outermost first
  int images;
  int kernel_taps;
  bool few_taps;  // conv::few_taps, and pixels are less than 2^31 elements apart
};

/// The elements of a chunk of the reduction that belong to one block and tap.
struct alignas(16) Piece {
  Pixel tap;
  std::int32_t column;  // first column of the gathered tensor
  std::int32_t block;   // stored block and tap, in the order of values
  std::int32_t offset;  // offset in the block, along the reduction
  std::uint32_t needs;  // Tap::needs
};

template <class T>
struct SharedStorage {
  alignas(
      128) std::byte ring[T::kStages][T::kStageBytes];  // A [kTokens][kChunk], then B; the epilogue's sums
  static constexpr int kPieces = T::kChunk / 8;         // most pieces of a chunk: block sides are at least 8
  static constexpr int kTaps = 64;
  Piece pieces[2][kPieces];
  Pixel pixels[T::kTokens];      // gathered pixel of each walked pixel, for the walk's first tap
  Under under[T::kTokens];       // the same, if there are few taps
  Tap taps[kTaps];               // the first ones of the walk
  std::int32_t own[T::kTokens];  // the pixel of out; negative past the last
  Walk walk[3];
};

/// Fills in the walk of the thread block's class, its pixels and its taps. Returns false if it has none. All
/// threads call it.
template <class Direction, class T>
__device__ __forceinline__ bool find_pixels(const Params& params, SharedStorage<T>& shared, unsigned tile,
                                            unsigned of_class) {
  if (threadIdx.x < 3) {
    const Axis& axis = params.axis[threadIdx.x];
    if constexpr (kIsDx<Direction>) {
      for (unsigned i = 2; i > threadIdx.x; --i) of_class /= static_cast<unsigned>(params.axis[i].stride);
      shared.walk[threadIdx.x] =
          conv::walk_dx(axis, static_cast<int>(of_class % static_cast<unsigned>(axis.stride)));
    } else {
      shared.walk[threadIdx.x] = conv::walk_forward(axis);
    }
  }
  __syncthreads();
  const Walk(&walk)[3] = shared.walk;
  const std::int64_t pixels = std::int64_t{params.images} * walk[0].walked * walk[1].walked * walk[2].walked;
  const std::int64_t first = std::int64_t{tile} * T::kTokens;
  if (first >= pixels) return false;
  for (int token = threadIdx.x; token < T::kTokens; token += T::kThreads) {
    std::int32_t own = -1;
    shared.pixels[token] = first + token >= pixels
                               ? kNoPixel
                               : pixel_under(
                                     walk, static_cast<unsigned>(first + token),
                                     [&](int i, int place) {
                                       own =
                                           own * (kIsDx<Direction> ? params.axis[i].in : params.axis[i].out) +
                                           walk[i].own_first + place * walk[i].own_step;
                                     },
                                     [&](int image) { own = image; });
    shared.own[token] = own;
    if (params.few_taps)
      shared.under[token] = {shared.pixels[token].number, insides(shared.pixels[token], walk)};
  }
  const int taps = walk[0].taps * walk[1].taps * walk[2].taps;
  for (int tap = threadIdx.x; tap < taps && tap < SharedStorage<T>::kTaps; tap += T::kThreads)
    shared.taps[tap] = tap_of(walk, params.axis, static_cast<unsigned>(tap));
  __syncthreads();
  return true;
}

}  // namespace sparseloom::kernels::cuda::conv_forward
