// The numbers to which column_sweep rounds what it keeps: those that ops.quantize_rows of the PyTorch front
// gives a row, on the CPU and on a GPU.
#pragma once

#include <cmath>

#include "sparseloom/one_shot.h"

#ifdef __CUDACC__
#define SPARSELOOM_HOST_DEVICE __host__ __device__
#else
#define SPARSELOOM_HOST_DEVICE
#endif

namespace sparseloom::sparsifiers {

/// x of at most 448 rounded to e4m3: four significant bits, half to even, and no step below 2^-9.
SPARSELOOM_HOST_DEVICE inline float rounded_to_e4m3(float x) {
  const int exponent = x == 0 ? -6 : ilogbf(x), step = (exponent < -6 ? -6 : exponent) - 3;
  return scalbnf(rintf(scalbnf(x, -step)), step);
}

/// The grid of one row, whose largest element is `top`.
struct RowGrid {
  SweepGrid grid;
  float top, limit, scale, inverse;

  SPARSELOOM_HOST_DEVICE RowGrid(SweepGrid kind, float largest)
      : grid(kind), top(largest), limit(kind == SweepGrid::int8 ? 127.0f : 448.0f), scale(top / limit) {
    inverse = 1 / scale;
    if (!(inverse <= 3.4028235e38f)) inverse = 0;  // of a row of zeros
  }

  /// The number of the grid next to x; a pinned x becomes the largest of its sign. The largest is exactly
  /// `top`, so that the row's scale can be found again.
  SPARSELOOM_HOST_DEVICE float nearest(float x, bool pinned) const {
    float steps = fminf(fmaxf(x * inverse, -limit), limit);
    if (pinned) steps = copysignf(limit, x);
    steps = grid == SweepGrid::int8 ? rintf(steps) : rounded_to_e4m3(steps);
    return fabsf(steps) == limit ? copysignf(top, steps) : steps * scale;
  }
};

}  // namespace sparseloom::sparsifiers

#undef SPARSELOOM_HOST_DEVICE
