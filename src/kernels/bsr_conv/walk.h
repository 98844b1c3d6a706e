// How a kernel of bsr_conv walks the pixels of one tensor and gathers pixels of the other for them, one axis
// of space at a time, in plain integers.
//
//   forward  walks out, gathers x:     gathered = walked stride - padding + tap dilation
//   dW       the same: walks dy, gathers x
//   dx       walks dx, gathers dy:     gathered = (walked + padding - tap dilation) / stride, if it divides
//
// With a stride above 1, dx is divided into classes by the remainder of `walked`: in a class the same taps
// divide for every pixel, so a class is a convolution of stride 1 with some of the taps.
#pragma once

#include <cstdint>

#include "sparseloom/conv_shape.h"

#ifdef __CUDACC__
#define SPARSELOOM_BOTH __host__ __device__
#else
#define SPARSELOOM_BOTH
#endif

namespace sparseloom::kernels::conv {

using Axis = ConvAxis;
using Shape = ConvShape;

/// An axis of a walk. For walked pixel p and tap t the gathered pixel is first + p step + t tap_step; it is
/// zero outside [0, gathered). Walked pixel p is pixel own_first + p own_step of its tensor, and tap t is tap
/// tap_first + t tap_each of the kernel.
struct Walk {
  int walked, gathered, first, step;
  int taps, tap_step, tap_first, tap_each;
  int own_first, own_step;
};

SPARSELOOM_BOTH inline int greatest_divisor(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

SPARSELOOM_BOTH inline Walk walk_forward(const Axis& axis) {
  return {axis.out, axis.in, -axis.padding, axis.stride, axis.kernel, axis.dilation, 0, 1, 0, 1};
}

/// The class of dx's pixels whose remainder by the stride is `rest`. It has no taps if none divides.
SPARSELOOM_BOTH inline Walk walk_dx(const Axis& axis, int rest) {
  const int divisor = greatest_divisor(axis.stride, axis.dilation), each = axis.stride / divisor;
  Walk walk{axis.in > rest ? (axis.in - rest - 1) / axis.stride + 1 : 0,
            axis.out,
            0,
            1,
            0,
            -(axis.dilation / divisor),  // dilation each / stride, without a product beyond 31 bits
            0,
            each,
            rest,
            axis.stride};
  for (int tap = 0; tap < each && tap < axis.kernel; ++tap) {
    const int at = rest + axis.padding - tap * axis.dilation;
    if (at % axis.stride != 0) continue;
    walk.first = at / axis.stride;
    walk.tap_first = tap;
    walk.taps = (axis.kernel - 1 - tap) / each + 1;
    break;
  }
  return walk;
}

/// Whether a word has a bit per tap along each axis, and one more (cuda/pixel.cuh).
inline bool few_taps(const Shape& shape) {
  return std::int64_t{shape.axis[0].kernel} + shape.axis[1].kernel + shape.axis[2].kernel < 32;
}

}  // namespace sparseloom::kernels::conv
