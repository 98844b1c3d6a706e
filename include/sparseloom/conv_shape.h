// ConvShape: the positions of a convolution's pixels and taps (bsr_conv.h). Kernels include it, and no
// Problem.
#pragma once

#include <cstdint>

namespace sparseloom {

/// One axis of space of a convolution. `in` and `out` are the extents of x and y.
struct ConvAxis {
  std::int32_t in = 1, out = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
  friend bool operator==(const ConvAxis&, const ConvAxis&) = default;
};

/// A convolution in space. Axes are depth, height, width; missing ones keep their defaults.
struct ConvShape {
  ConvAxis axis[3];
  std::int32_t images = 0;

  std::int64_t taps() const { return std::int64_t{axis[0].kernel} * axis[1].kernel * axis[2].kernel; }
  std::int64_t in_pixels() const { return std::int64_t{images} * axis[0].in * axis[1].in * axis[2].in; }
  std::int64_t out_pixels() const { return std::int64_t{images} * axis[0].out * axis[1].out * axis[2].out; }
  /// Classes of pixels of dX; the pixels of a class meet the same taps.
  std::int64_t strides() const { return std::int64_t{axis[0].stride} * axis[1].stride * axis[2].stride; }
  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

}  // namespace sparseloom
