// The tensor-map descriptions of the matrices of sm90_mma.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::sm90_mma {

/// x is [m, reduction], the others are [m, outputs]; all are 16-bit.
struct Operands {
  TensorMapMatrix x, out, pre, residual;  // pre and residual have null data if args has none

  explicit Operands(const MatmulArgs& args) {
    const bool dx = args.direction == Direction::dx;
    const std::int64_t outputs = dx ? args.index.cols : args.index.rows;
    x = {args.a, args.dtype, args.m, dx ? args.index.rows : args.index.cols, args.a_stride * 2};
    out = {args.out, args.dtype, args.m, outputs, args.out_stride * 2};
    pre = {dx ? nullptr : args.pre, args.dtype, args.m, outputs, args.pre_stride * 2};
    residual = {dx ? nullptr : args.residual, args.dtype, args.m, outputs, args.residual_stride * 2};
  }
  bool possible() const {
    return tensor_map_possible(x) && tensor_map_possible(out) &&
           (pre.data == nullptr || tensor_map_possible(pre)) &&
           (residual.data == nullptr || tensor_map_possible(residual));
  }
};

}  // namespace sparseloom::kernels::cuda::sm90_mma
