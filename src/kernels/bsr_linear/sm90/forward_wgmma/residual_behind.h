// Adds a residual for kernels whose epilogue leaves it out: those that write fp32, where it would make ptxas
// serialise the wgmma.
#pragma once

#include "kernels/args.h"
#include "kernels/shared/activation/activate.h"

namespace sparseloom::kernels::cuda {

/// Runs product(args) without its residual; a pass then adds the residual to the finished outputs.
template <class Product>
int with_residual_behind(const MatmulArgs& args, const Product& product) noexcept {
  if (args.residual == nullptr) return product(args);
  MatmulArgs without = args;
  without.residual = nullptr;
  if (const int status = product(without); status != 0) return status;
  const std::int64_t width = args.index.rows;
  const MatrixView out{args.out, args.dtype, args.m, width, args.out_stride};
  return sm80_activate(out, Activation::none,
                       {args.residual, args.dtype, args.m, width, args.residual_stride}, out, args.stream);
}

}  // namespace sparseloom::kernels::cuda
