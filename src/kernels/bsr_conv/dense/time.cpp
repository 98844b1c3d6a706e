// The predicted time of the lent convolution.
#include <algorithm>

#include "kernels/bsr_conv/cuda/product.h"
#include "kernels/bsr_conv/rows.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::kernels {
namespace {

// The share and the seconds per element of x and y hold where the rate of fp32 was not measured. Fitted to 92
// fp32 problems of a sweep that timed every candidate (two threads of a Zen 3 that shares its host): the
// fraction of the FMA peak that torch's product reaches; the seconds of one thread per element of W, which is
// unpacked and laid out by taps; and those per element of x and y, which torch converts from channels last.
// Of the 92 it was within 1.3 of the time in 68. A fraction alone, .95 (dW .63) as fitted to 512 channels of
// 14 x 14, was within 1.3 in 3 and predicted half of the time in the median, and the plan chose torch's in
// 19, in 18 of them by mistake. On a quiet Zen 4 all times were two thirds (12 problems, forward and dX),
// like the rows' products: fractions and seconds here are that machine's.
constexpr double kTorchShare = 1.0, kTorchDxShare = 0.75, kTorchDwShare = 0.67;
constexpr double kMadeSeconds = 8e-9, kLaidOutSeconds = 1.3e-9;

bsr_conv::DenseTime on_cpu(const bsr_conv::Problem& p, const plan::MachineRates& rates) {
  // dX of a stride above 1 multiplies no more than the forward product does.
  const std::int64_t pixels = p.shape.out_pixels(), cols = p.cols * p.shape.taps();
  const int threads = std::max(1, p.threads);
  const double share = p.direction == Direction::forward ? kTorchShare
                       : p.direction == Direction::dx    ? kTorchDxShare
                                                         : kTorchDwShare,
               of_peak = share * std::max(rates.f32_avx2, rates.f32_avx512) * threads;
  generic::DenseProblem dense;
  dense.direction = p.direction, dense.dtype = p.dtype, dense.m = pixels, dense.rows = p.rows;
  dense.cols = cols, dense.threads = threads, dense.can_gemm = true;
  dense.has_epilogue_pass = p.activation != Activation::none || p.residual;
  dense.copy_bytes = rates.copy_bytes;
  const bool measured = rates.gemm_flops > 0;
  dense.gemm_flops = measured ? rates.gemm_flops : of_peak;
  if (dense.gemm_flops <= 0 || dense.copy_bytes <= 0) return {};
  const auto elements = [](std::int64_t high, std::int64_t wide) {
    return static_cast<double>(high) * static_cast<double>(wide);
  };
  const double copy_s = kMadeSeconds * elements(p.rows, cols);
  const double laid_out =
      measured && p.dtype == DType::f32
          ? 0
          : kLaidOutSeconds * (elements(p.shape.in_pixels(), p.cols) + elements(pixels, p.rows));
  const double gemm_us = generic::predict_gemm_on_cpu_us(dense);
  return {gemm_us + 1e6 * laid_out / threads,
          generic::predict_dense_on_cpu_us(dense) - gemm_us + 1e6 * copy_s / threads};
}

}  // namespace

bsr_conv::DenseTime dense_conv_time(const bsr_conv::Problem& p, const plan::Machine& machine) {
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return {};
  return p.device < 0 ? on_cpu(p, machine.rates) : dense_conv_on_device(p, machine);
}

}  // namespace sparseloom::kernels
