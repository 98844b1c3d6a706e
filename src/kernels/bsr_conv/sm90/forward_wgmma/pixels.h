// How im2col TMA walks the pixels of a convolution, in plain integers.
#pragma once

#include <cstdint>

#include "kernels/bsr_conv/sm90/operands/pixel_map.h"
#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda::wgmma_conv {

/// One axis of space. The base pixel of walked pixel p is first + p step; tap t of the kernel is tap_first +
/// t tap_step pixels from it, which is not negative. In dX, which needs a stride of 1, taps count backwards:
/// tap t of the kernel meets dY at p + padding - t dilation.
struct AxisWalk {
  std::int32_t walked, first, step, taps, tap_first, tap_step;
};

inline AxisWalk axis_walk(const conv::Axis& axis, bool dx) {
  const int reach = (axis.kernel - 1) * axis.dilation;
  if (!dx) return {axis.out, -axis.padding, axis.stride, axis.kernel, 0, axis.dilation};
  return {axis.in, axis.padding - reach, 1, axis.kernel, reach, -axis.dilation};
}

struct PixelWalk {
  AxisWalk axis[3];  // depth, height, width
  unsigned taps;
  bool deep;  // three axes of space
};

/// The gathered tensor, for a tensor map; data and bytes are the caller's.
inline PixelTensor pixel_tensor(const conv::Shape& shape, bool dx) {
  PixelTensor tensor{};
  tensor.images = shape.images;
  for (int i = 0; i < 3; ++i) {
    const conv::Axis& axis = shape.axis[i];
    const AxisWalk walk = axis_walk(axis, dx);
    tensor.axis[i] = {dx ? axis.out : axis.in, walk.first, walk.step, walk.walked,
                      (axis.kernel - 1) * axis.dilation};
  }
  const PixelTensor::Axis& depth = tensor.axis[0];
  tensor.deep = depth.extent != 1 || depth.first != 0 || depth.count != 1 || depth.reach != 0;
  return tensor;
}

inline PixelWalk pixel_walk(const conv::Shape& shape, bool dx, bool deep) {
  PixelWalk walk{{}, static_cast<unsigned>(shape.taps()), deep};
  for (int i = 0; i < 3; ++i) walk.axis[i] = axis_walk(shape.axis[i], dx);
  return walk;
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv
