// The arguments of this family's CUDA kernels: the operands as in MatmulArgs, and W.
#pragma once

#include <cstdint>

#include "sparseloom/matmul_args.h"

namespace sparseloom::kernels::cuda {

/// out [m, rows] = act(a [m, cols] W^T + bias) + residual; act and the additions are in fp32, before the only
/// rounding. args.values are [rows, 2 ceil(cols / 4)], as in memory of record (row by row); `metadata` is the
/// result of semi24_order_metadata.
struct Semi24Product {
  const MatmulArgs& args;
  std::int64_t rows, cols;
  const std::byte* metadata;
};

}  // namespace sparseloom::kernels::cuda
