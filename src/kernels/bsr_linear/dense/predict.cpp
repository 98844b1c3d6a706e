// Predicted time of the dense row, on the CPU and on CUDA.
#include "kernels/bsr_linear/dense/predict.h"

#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/generic/dense_on_device.h"

namespace sparseloom::kernels::dense {
namespace {

// The share of the peak (cuda::kVendorShare) for e4m3 without fast accumulation (the measurement included the
// scatter of W), and for TF32 dW, whose operands are contiguous along the tokens: cuBLAS takes 1.5 times as
// long there as in forward.
constexpr double kVendorF8Share = 0.72, kVendorTf32DwShare = 0.5;
// What the gather of dW's blocks takes beyond a launch and its bytes.
constexpr double kGatherUs = 2;

// The vendor's product and what follows it, with W dense already.
double product_cuda_us(const Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  const Device device(machine);
  const Bytes bytes = bytes_of(p);
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const bool tf32_dw = p.direction == Direction::dw && p.dtype == DType::f32 && p.tf32;
  const double share = is_scaled(p.dtype) ? kVendorF8Share : tf32_dw ? kVendorTf32DwShare : kVendorShare;
  // dW of few features gives cuBLAS few tiles, which it does not cut along the tokens.
  const double tiles = std::max(1.0, static_cast<double>(p.rows) * static_cast<double>(p.cols) / (128 * 128));
  const double filled =
      p.direction == Direction::dw ? std::pow(std::min(1.0, 2 * tiles / device.multiprocessors), 0.75) : 1;
  const double product = std::max(flops / (share * filled * dense_peak(p, device)),
                                  memory_seconds(bytes.dense + bytes.tokens, device));
  double total = kLaunchUs + us(product);
  const double written = static_cast<double>(p.m) * static_cast<double>(p.rows) * written_size(p);
  if (p.activation != Activation::none || p.residual)  // an extra pass over what the product wrote
    total += kLaunchUs + us(memory_seconds((p.residual ? 3.0 : 2.0) * written, device));
  // An f32 output of 8-bit operands needs an extra pass for the bias and one each for the scales of tokens
  // and of outputs, of which the plan is not told.
  if (is_scaled(p.dtype) && p.out == DType::f32)
    total += (p.bias ? 3 : 2) * (kLaunchUs + us(memory_seconds(2 * written, device)));
  return total;
}

// The scatter of W, or the gather of dW's blocks, whose product L2 still has.
double moving_cuda_us(const Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  const Bytes bytes = bytes_of(p);
  const bool gathers = p.direction == Direction::dw;
  const double moved = gathers ? bytes.stored : bytes.stored + bytes.dense;
  return kLaunchUs + (gathers ? kGatherUs : 0) + us(memory_seconds(moved, Device(machine)));
}

}  // namespace

double predict_us(const Problem& p, const plan::Machine& machine) {
  return p.device >= 0 ? moving_cuda_us(p, machine) + product_cuda_us(p, machine)
                       : generic::predict_dense_on_cpu_us(generic::dense_problem(p, machine));
}

double product_us(const Problem& p, const plan::Machine& machine) {
  return p.device >= 0 ? product_cuda_us(p, machine)
                       : generic::predict_gemm_on_cpu_us(generic::dense_problem(p, machine));
}

}  // namespace sparseloom::kernels::dense
