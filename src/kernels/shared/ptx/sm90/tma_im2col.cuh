// Copies of pixels of a channels-last tensor under the taps of a convolution, by TMA's im2col mode. The
// tensor map (bsr_conv/sm90/operands/pixel_map.h) has a box of base pixels in space, which may exceed the
// tensor, the step between them, and the pixels and channels per copy. The copy begins at a base pixel,
// continues in the order width, height, depth, image, wherever the box ends, and adds the offset of the tap
// to each. Pixels outside the tensor, and images past the last, are read as zero.
//
// In shared memory the pixels are rows of the channels' bytes, swizzled like the rows of a matrix (tma.cuh).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// A base pixel: its position along width, height and depth, and its image.
struct BasePixel {
  std::int32_t w, h, d, n;
};
/// The offset of a tap, not negative.
struct TapOffset {
  std::uint16_t w, h, d;
};

/// Two axes of space. `barrier` counts the bytes that arrive, including those of zeros.
__device__ __forceinline__ void tma_load_im2col_2d(std::uint32_t shared, const CUtensorMap* map,
                                                   std::int32_t channel, const BasePixel& pixel,
                                                   const TapOffset& tap, std::uint32_t barrier,
                                                   L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], "
      "[%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared),
      "l"(map), "r"(channel), "r"(pixel.w), "r"(pixel.h), "r"(pixel.n), "r"(barrier), "h"(tap.w), "h"(tap.h),
      "l"(policy)
      : "memory");
}

/// Three axes of space.
__device__ __forceinline__ void tma_load_im2col_3d(std::uint32_t shared, const CUtensorMap* map,
                                                   std::int32_t channel, const BasePixel& pixel,
                                                   const TapOffset& tap, std::uint32_t barrier,
                                                   L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10}, %11;" ::"r"(shared),
      "l"(map), "r"(channel), "r"(pixel.w), "r"(pixel.h), "r"(pixel.d), "r"(pixel.n), "r"(barrier),
      "h"(tap.w), "h"(tap.h), "h"(tap.d), "l"(policy)
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
