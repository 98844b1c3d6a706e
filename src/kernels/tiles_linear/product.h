// The arguments of this family's CUDA kernels: the operands as in MatmulArgs, and W.
#pragma once

#include <cstddef>

#include "sparseloom/matmul_args.h"
#include "sparseloom/tiles.h"

namespace sparseloom::kernels::cuda {

/// out [m, rows] = act(a [m, cols] W^T + bias) + residual; act and the additions are in fp32, before the only
/// rounding. `w`: with its table and, if there are 2:4 tiles, metadata on the device.
struct TilesProduct {
  const MatmulArgs& args;
  const TilesView& w;
};

}  // namespace sparseloom::kernels::cuda
