#include "kernels/bsr_conv/cuda/product.h"

#include <algorithm>

#include "kernels/bsr_linear/dense/predict.h"

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

namespace sparseloom::kernels {

// torch makes the dense W in five passes (zeros, scatter, permutation, the layout that cuDNN wants, and the
// list of cells), which write it four times and read it twice; dW's blocks are gathered in three.
double dense_conv_on_device_us(const bsr_conv::Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  if (p.dtype == DType::f32 && !p.tf32) return 0;  // no row runs it
  sparseloom::Problem product = conv_rows::product_of(p);
  const bool dw = p.direction == Direction::dw;
  const double dense = static_cast<double>(product.rows) * static_cast<double>(product.cols) *
                       static_cast<double>(size_of(p.dtype));
  const double passes = dw ? 3 : 5, moved = dw ? 2 * bytes_of(product).stored : 6 * dense;
  product.activation = Activation::none, product.residual = false;
  return dense::product_us(product, machine) + passes * kLaunchUs +
         us(memory_seconds(moved, Device(machine)));
}

}  // namespace sparseloom::kernels

#else

namespace sparseloom::kernels {

double dense_conv_on_device_us(const bsr_conv::Problem&, const plan::Machine&) { return 0; }

}  // namespace sparseloom::kernels

#endif
