// Measures the rate of the dense convolution that an executor lends.
#include "ops/conv_rate.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/measured_rate.h"

namespace sparseloom::ops {
namespace {

// Images that are measured at most, the extent of an axis, and the work: more of either changes no rate, and
// takes time. At 50 Gflop/s so much takes 80 ms.
constexpr std::int32_t kImages = 8, kExtent = 1024;
constexpr double kMostWork = 4e9;

std::int32_t rounded(std::int32_t size, std::int32_t least, std::int32_t most) {
  std::int32_t power = 1;
  while (power * 2 <= std::min(size, most)) power *= 2;
  return std::clamp(power, std::min(least, size), size);
}

// The axis with another extent of x.
ConvAxis with_extent(ConvAxis axis, std::int32_t in) {
  axis.in = in;
  axis.out = (in + 2 * axis.padding - (axis.dilation * (axis.kernel - 1) + 1)) / axis.stride + 1;
  return axis;
}

// No x is measured that the taps reach beyond where the problem's is not: oneDNN failed on such a one that
// nobody had asked for (torch 2.11, AVX-512).
std::int32_t least_extent(const ConvAxis& axis) {
  return std::min(axis.in, axis.dilation * (axis.kernel - 1) + 1);
}

ConvShape sampled(ConvShape shape) {
  shape.images = rounded(shape.images, 1, kImages);
  for (ConvAxis& axis : shape.axis) axis = with_extent(axis, rounded(axis.in, least_extent(axis), kExtent));
  return shape;
}

// A smaller shape: half of the images, or of one image's extents.
ConvShape halved(ConvShape shape) {
  if (shape.images > 1) {
    shape.images /= 2;
    return shape;
  }
  for (ConvAxis& axis : shape.axis)
    axis = with_extent(axis, std::min(axis.in, std::max(axis.in / 2, least_extent(axis))));
  return shape;
}

double flops_of(const ConvShape& shape, std::int64_t rows, std::int64_t cols) {
  return 2.0 * static_cast<double>(shape.out_pixels()) * static_cast<double>(rows) *
         static_cast<double>(cols * shape.taps());
}

MeasuredRate measure(const bsr_conv::Problem& p, const ConvShape& whole, const Executor& executor) {
  const std::int64_t width = p.cols * whole.taps();
  std::vector<std::byte> x = varied(p.dtype, whole.in_pixels() * p.cols),
                         y = varied(p.dtype, whole.out_pixels() * p.rows),
                         w = varied(p.dtype, p.rows * width);
  const auto timed = [&](const ConvShape& shape) {
    const std::int64_t in = shape.in_pixels(), out = shape.out_pixels();
    DenseConv conv;
    conv.direction = p.direction, conv.shape = shape;
    const MatrixView of_x{x.data(), p.dtype, in, p.cols, p.cols},
        of_y{y.data(), p.dtype, out, p.rows, p.rows}, weight{w.data(), p.dtype, p.rows, width, width};
    conv.a = p.direction == Direction::forward ? of_x : of_y;
    conv.b = p.direction == Direction::dw ? of_x : weight;
    conv.out = p.direction == Direction::forward ? of_y : p.direction == Direction::dx ? of_x : weight;
    return TimedProduct{flops_of(shape, p.rows, p.cols),
                        [conv, &executor]() mutable { executor.conv(executor.context, conv); }};
  };
  ConvShape least = whole;
  for (ConvShape next = halved(least); !(next == least); next = halved(least)) least = next;
  return measure_growth(timed(whole), timed(least));
}

}  // namespace

double conv_rate(const bsr_conv::Problem& p, const Executor& executor) {
  if (executor.conv == nullptr || p.m <= 0 || p.rows <= 0 || p.cols <= 0) return 0;
  ConvShape shape = sampled(p.shape);
  while (flops_of(shape, p.rows, p.cols) > kMostWork && !(halved(shape) == shape)) shape = halved(shape);
  RateKey key{reinterpret_cast<std::int64_t>(executor.conv),
              static_cast<std::int64_t>(p.dtype),
              static_cast<std::int64_t>(p.direction),
              p.threads,
              p.rows,
              p.cols,
              shape.images};
  std::size_t at = 7;
  for (const ConvAxis& axis : shape.axis)
    for (const std::int32_t number : {axis.in, axis.kernel, axis.stride, axis.padding, axis.dilation})
      key[at++] = number;
  return kept_rate(key, [&] { return measure(p, shape, executor); });
}

}  // namespace sparseloom::ops
