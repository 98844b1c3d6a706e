// Host side of TMA's im2col mode: it describes channels-last tensors of pixels by tensor maps.
// ptx/sm90/tma_im2col.cuh has the contract of the device side.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda {

/// A channels-last tensor [images, depth, height, width, channels] of 16-bit elements, with a stride of
/// stride_bytes between pixels, as the taps of a convolution visit it. Axes are depth, height, width; without
/// depth the first has the extent 1 and is ignored. Base pixels begin at `first`, are `step` apart, and there
/// are `count` of them along an axis; taps add at most `reach`.
struct PixelTensor {
  struct Axis {
    std::int64_t extent = 1;
    int first = 0, step = 1, count = 1, reach = 0;
  };
  const void* data;
  DType dtype;
  std::int64_t images, channels, stride_bytes;
  Axis axis[3];
  bool deep;  // three axes
};

/// Whether TMA can address it: alignment and sizes as in tensor_map_possible, and corners, steps and offsets
/// within the bits of a map.
bool pixel_map_possible(const PixelTensor& tensor) noexcept;

/// Copies of `pixels` x `channels`; the channels take 128 or 64 bytes. Like encode_tensor_map.
bool encode_pixel_map(CUtensorMap& map, const PixelTensor& tensor, int pixels, int channels) noexcept;

}  // namespace sparseloom::kernels::cuda
