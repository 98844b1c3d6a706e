// Who takes a call of forward or dx whose operands TMA cannot address.
#pragma once

#include "kernels/args.h"
#include "kernels/cuda/launch.h"

namespace sparseloom::kernels::cuda {

/// With args.pre: the kernel that takes over stores one output, so a pass makes the other of it.
inline int hand_over(const MatmulArgs& args) noexcept {
  if (args.dtype == DType::f8e4m3) return sm80_f8_dds(args);
  if (args.pre == nullptr) return sm80_mma_dds(args);
  MatmulArgs product = args;
  product.activation = Activation::none;
  product.residual = nullptr;
  product.out = args.pre;
  product.out_stride = args.pre_stride;
  const int status = sm80_mma_dds(product);
  if (status != 0) return status;
  const ConstMatrixView pre{args.pre, args.dtype, args.m, args.index.rows, args.pre_stride};
  const ConstMatrixView residual{args.residual, args.dtype, args.m, args.index.rows, args.residual_stride};
  return sm80_activate(pre, args.activation, residual,
                       {args.out, args.dtype, args.m, args.index.rows, args.out_stride}, args.stream);
}

}  // namespace sparseloom::kernels::cuda
