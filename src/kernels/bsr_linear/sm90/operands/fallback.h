// The fallback of forward and dx, for operands that TMA cannot address.
#pragma once

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/forward_f8/entry.h"
#include "kernels/bsr_linear/sm80/forward_mma/entry.h"
#include "kernels/shared/activation/activate.h"

namespace sparseloom::kernels::cuda {

/// Launches a kernel that takes any alignment. That kernel stores one output only, so with args.pre it stores
/// the sums there, and a pass computes the other output from them.
inline int fallback(const MatmulArgs& args) noexcept {
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
