// Device side of pixels.h: the first pixel and the tap of a copy of pixels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.h"
#include "kernels/shared/ptx/sm90/tma_im2col.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv {

/// The base pixel of a walked pixel. Past the last pixel it lies in an image past the last.
__device__ __forceinline__ ptx::BasePixel base_pixel(const PixelWalk& walk, std::int32_t walked) {
  auto left = static_cast<unsigned>(walked);
  std::int32_t at[3];
#pragma unroll
  for (int i = 2; i >= 0; --i) {
    const auto extent = static_cast<unsigned>(walk.axis[i].walked);
    const unsigned next = left / extent;
    at[i] = walk.axis[i].first + static_cast<std::int32_t>(left - next * extent) * walk.axis[i].step;
    left = next;
  }
  return {at[2], at[1], at[0], static_cast<std::int32_t>(left)};
}

__device__ __forceinline__ ptx::TapOffset tap_offset(const PixelWalk& walk, unsigned d, unsigned h,
                                                     unsigned w) {
  const auto along = [&](int i, unsigned tap) {
    return static_cast<std::uint16_t>(walk.axis[i].tap_first +
                                      static_cast<std::int32_t>(tap) * walk.axis[i].tap_step);
  };
  return {along(2, w), along(1, h), along(0, d)};
}
/// The offset of tap `number` of the kernel.
__device__ __forceinline__ ptx::TapOffset tap_offset(const PixelWalk& walk, unsigned number) {
  const auto width = static_cast<unsigned>(walk.axis[2].taps),
             height = static_cast<unsigned>(walk.axis[1].taps);
  const unsigned line = number / width, plane = line / height;
  return tap_offset(walk, plane, line - plane * height, number - line * width);
}

/// Enumerates the taps of the kernel.
class Taps {
 public:
  __device__ __forceinline__ void advance(const PixelWalk& walk) {
    ++number_;
    if (++w_ < static_cast<unsigned>(walk.axis[2].taps)) return;
    w_ = 0;
    if (++h_ < static_cast<unsigned>(walk.axis[1].taps)) return;
    h_ = 0;
    ++d_;
  }
  __device__ __forceinline__ std::int32_t number() const { return number_; }
  __device__ __forceinline__ ptx::TapOffset offset(const PixelWalk& walk) const {
    return tap_offset(walk, d_, h_, w_);
  }

 private:
  std::int32_t number_ = 0;
  unsigned w_ = 0, h_ = 0, d_ = 0;
};

/// Starts the copy of the pixels from `pixel` on, under the tap.
__device__ __forceinline__ void load_pixels(std::uint32_t shared, const CUtensorMap* map,
                                            const PixelWalk& walk, std::int32_t channel,
                                            const ptx::BasePixel& pixel, const ptx::TapOffset& tap,
                                            std::uint32_t barrier, ptx::L2Policy policy) {
  if (walk.deep) {
    ptx::tma_load_im2col_3d(shared, map, channel, pixel, tap, barrier, policy);
  } else {
    ptx::tma_load_im2col_2d(shared, map, channel, pixel, tap, barrier, policy);
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv
