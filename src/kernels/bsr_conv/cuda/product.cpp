#include "kernels/bsr_conv/cuda/product.h"

#include <algorithm>
#include <cmath>

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

namespace {

// What cuDNN takes, of the microseconds of a GEMM of as many operations: kOfGemm of them and, for what small
// ones leave of the GPU idle, a multiple of their root, by direction (forward, dX, dW). Drawn through 33
// convolutions of a sweep on an H100 (`bench sweep --family bsr_conv --seed 4141`).
constexpr double kOfGemm = 1.05, kOfRoot[] = {1.5, 1.2, 0.7};
// A pass that does next to nothing.
constexpr double kPassUs = 1.7;

}  // namespace

// One pass scatters W, or gathers dW's blocks; three before it spread the lists over the taps.
bsr_conv::DenseTime dense_conv_on_device(const bsr_conv::Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  if (p.dtype == DType::f32 && !p.tf32) return {};  // no row runs it
  sparseloom::Problem product = conv_rows::product_of(p);
  const bool dw = p.direction == Direction::dw;
  const double dense = static_cast<double>(product.rows) * static_cast<double>(product.cols) *
                       static_cast<double>(size_of(p.dtype));
  const double passes = p.shape.taps() == 1 ? 1 : 4, stored = bytes_of(product).stored;
  product.activation = Activation::none, product.residual = false;
  const double gemm = dense::product_us(product, machine);
  return {kOfGemm * gemm + kOfRoot[static_cast<int>(p.direction)] * std::sqrt(gemm),
          passes * kPassUs + us(memory_seconds(dw ? 2 * stored : stored + dense, Device(machine)))};
}

}  // namespace sparseloom::kernels

#else

namespace sparseloom::kernels {

bsr_conv::DenseTime dense_conv_on_device(const bsr_conv::Problem&, const plan::Machine&) { return {}; }

}  // namespace sparseloom::kernels

#endif
