#include "kernels/bsr_conv/cuda/product.h"

#include <algorithm>
#include <cmath>

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
  product.facts = {};  // W's facts: its taps make the product's rows more even than they say
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

// The time of cuDNN with channels last: fitted to 300 convolutions of a sweep of an H200 (docs/log,
// 2026-11-28), except the rates of 16 bits, which come from long ones.
struct Fit {
  double start_us;
  // Additional time: for several taps; for strides above 1; if rows of channels are not at multiples of 16
  // bytes, so that cuDNN pads them in a pass of its own.
  double taps_us, strided_us, ragged_us;
  double share;    // fraction of the peak
  double root;     // factor on the root of the microseconds at that rate, since small products leave the GPU
                   // partly idle
  double chain;    // ns per position of the reduction
  double streams;  // fraction of the DRAM rate
};
// 16 bits, then TF32; forward, dX, dW.
constexpr Fit kFits[2][3] = {{{4.0, 1.67, 0.48, 13.4, 0.92, 1.85, 0.46, 1.22},
                              {2.6, 2.1, 6.66, 11.1, 0.92, 1.49, 1.09, 0.84},
                              {4.3, 0.68, 0.8, 10, 0.84, 2.02, 0.02, 1.22}},
                             {{3.3, 3.02, 1.41, 11.3, 0.72, 2.4, 0.076, 1.22},
                              {4.4, 3.39, 8.14, 8.7, 0.72, 1.22, 3.64, 0.68},
                              {5.6, 5.85, 0.09, 7, 0.5, 4.54, 0.05, 1.22}}};
// The pass that scatters W, and the gather of dW's blocks: their fixed times and factors on the bytes that
// they move, some of which stay in L2. Fitted to 184 convolutions of the same sweep.
constexpr double kScatterUs = 3.6, kScatterTf32Us = 1.5, kScatterStreams = 1.4, kGatherUs = 3,
                 kGatherStreams = 0.8;

double cudnn_us(const bsr_conv::Problem& p, const cuda::Device& device) {
  using namespace cuda;
  const bool dx = p.direction == Direction::dx, dw = p.direction == Direction::dw;
  const Fit& fit = kFits[p.dtype == DType::f32][static_cast<int>(p.direction)];
  const double pixels = static_cast<double>(p.shape.out_pixels()), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols), taps = static_cast<double>(p.shape.taps()),
               size = static_cast<double>(size_of(p.dtype));
  const double busy = us(2 * pixels * rows * cols * taps / (fit.share * dense_peak(p, device)));
  const double bytes =
      size * (static_cast<double>(p.shape.in_pixels()) * cols + pixels * rows + rows * cols * taps);
  const double depth = dw ? pixels : dx ? rows * taps / static_cast<double>(p.shape.strides()) : cols * taps;
  const auto in_chunks = [&](std::int64_t channels) {
    return channels * static_cast<std::int64_t>(size_of(p.dtype)) % 16 == 0;
  };
  return fit.start_us + (p.shape.taps() > 1 ? fit.taps_us : 0) +
         (p.shape.strides() > 1 ? fit.strided_us : 0) +
         (in_chunks(p.rows) && in_chunks(p.cols) ? 0 : fit.ragged_us) +
         std::max(busy, us(memory_seconds(bytes, device)) / fit.streams) + fit.root * std::sqrt(busy) +
         chain_us(fit.chain * depth, device);
}

}  // namespace

bsr_conv::DenseTime dense_conv_on_device(const bsr_conv::Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  if (p.dtype == DType::f32 && !p.tf32) return {};  // no row runs it
  const Device device(machine);
  const double dense = static_cast<double>(p.rows) * static_cast<double>(p.cols) *
                       static_cast<double>(p.shape.taps()) * static_cast<double>(size_of(p.dtype)),
               product_us = cudnn_us(p, device);
  if (p.direction == Direction::dw)
    return {product_us, kGatherUs + us(memory_seconds(dense, device)) / kGatherStreams};
  return {product_us, kScatterUs + (p.dtype == DType::f32 ? kScatterTf32Us : 0) +
                          us(memory_seconds(bytes_of(conv_rows::product_of(p)).stored + dense, device)) /
                              kScatterStreams};
}

}  // namespace sparseloom::kernels

#else

namespace sparseloom::kernels {

bsr_conv::DenseTime dense_conv_on_device(const bsr_conv::Problem&, const plan::Machine&) { return {}; }

}  // namespace sparseloom::kernels

#endif
