#include "kernels/bsr_conv/cuda/product.h"

#include <algorithm>

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::conv_rows {

sparseloom::Problem product_of(const bsr_conv::Problem& p) {
  sparseloom::Problem product = p;
  const std::int64_t taps = p.shape.taps();
  const auto whole = [&](std::int64_t size, int side) { return (size + side - 1) / side * side * taps; };
  if (p.direction == Direction::dx) {
    product.rows = whole(p.rows, p.block.rows);
  } else {
    product.cols = whole(p.cols, p.block.cols);
  }
  product.blocks = p.blocks * taps;
  return product;
}

double repeated_bytes(const bsr_conv::Problem& p) {
  const bool dx = p.direction == Direction::dx;
  const double pixels = static_cast<double>(dx ? p.shape.out_pixels() : p.shape.in_pixels()),
               laid_out = static_cast<double>(p.m) * static_cast<double>(p.shape.taps());
  return std::max(0.0, laid_out - pixels) * static_cast<double>(dx ? p.rows : p.cols) *
         static_cast<double>(size_of(p.dtype));
}

}  // namespace sparseloom::kernels::cuda::conv_rows

#endif
