// Predicted time of the dense row, on the CPU and on CUDA.
#include "kernels/generic/predict_dense.h"

#include <algorithm>
#include <cmath>

#include "kernels/generic/dense_on_device.h"
#include "kernels/shared/cost/cost_terms.h"

namespace sparseloom::kernels::dense {
namespace {

// The fraction of the peak (cuda::kVendorShare) for e4m3 without fast accumulation (the measurement included
// the scatter of W), and for TF32 dW, whose operands are contiguous along the tokens: cuBLAS takes 1.5 times
// as long there as in forward.
constexpr double kVendorF8Share = 0.72, kVendorTf32DwShare = 0.5;

// dW of 16 bits reaches this fraction of the peak if the product is as long as 8192 x 4096 x 4096, on an H100
// and an H200 alike. The sweeps, whose products are shorter, gave the fit below.
constexpr double kLongDwShare = 0.76, kLongDwFlops = 2.75e11;

// Fitted to the sweeps of an H100 and an H200 whose seeds docs/log names (2026-11-25).
struct Fit {
  double start_us, share;  // fraction of the peak on long reductions
  double chain;            // ns per position of the reduction, for any number of tiles
  // Additional factors for rows that are not at multiples of 16 bytes: on the product, and on the chain.
  double ragged, ragged_chain;
  double l2;      // factor on the DRAM time of the product's operands: some are in L2
  double moving;  // factor on the time of streaming the scattered or gathered bytes
};
// 16-bit, 8-bit and TF32 products, then fp32; forward, dX, dW.
constexpr Fit kFits[2][3] = {{{3.31, 0.776, 0.54, 3, 8.8, 5.2, 1.36},
                              {3.3, 0.762, 0.72, 6, 9.4, 2.5, 1.21},
                              {3.93, 0.7, 0.35, 7.5, 7.5, 0.67, 1.88}},
                             {{7.4, 0.718, 1.87, 0.22, 0.22, 27, 2.1},
                              {6.2, 0.686, 1.1, 0.14, 0.14, 34, 2.2},
                              {2.6, 0.753, 8.4, 0.5, 0.5, 0.7, 4.1}}};

// Forward and dX with a kept dense copy of W: the same products with W from DRAM. Fitted to the dense
// baselines of the sweeps of an H100 (2026-11-26), which are such products: in 16 bits 93 % and 95 % are
// within 1.3 times. One token of fp32 is a matrix-vector product, which starts sooner.
struct FitOfCopy {
  double start_us, chain, l2;
};
constexpr FitOfCopy kCopy16[2] = {{3.4, 0.4, 1.1}, {3.0, 0.6, 1.2}},
                    kCopy32[2] = {{7.4, 1.87, 1}, {4.8, 1.8, 1}},
                    kCopyVector[2] = {{3.6, 0, 1.1}, {2.4, 0.4, 1.1}};

Fit fit_of(const Problem& p) {
  return kFits[p.dtype == DType::f32 && !p.tf32][static_cast<int>(p.direction)];
}

Fit fit_of_copy(const Problem& p) {
  Fit fit = fit_of(p);
  if (p.direction == Direction::dw) return fit;  // dW reads no W
  const bool f32 = p.dtype == DType::f32 && !p.tf32;
  const FitOfCopy& copy = (!f32 ? kCopy16 : p.m == 1 ? kCopyVector : kCopy32)[p.direction == Direction::dx];
  fit.start_us = copy.start_us, fit.chain = copy.chain, fit.l2 = copy.l2;
  return fit;
}

// The vendor's product and the passes after it, with W already dense; `out_size`: bytes of an output.
double product_cuda_us(const Problem& p, const plan::Machine& machine, const Fit& fit, double out_size) {
  using namespace cuda;
  const Device device(machine);
  const Bytes bytes = bytes_of(p, out_size);
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const Work w = work_of(p);
  const double product =
      std::max((w.ragged ? 1 + fit.ragged : 1) * flops / (fit.share * dense_peak(p, device)),
               memory_seconds(bytes.dense + bytes.tokens, device) / fit.l2);
  const double chain =
      (w.ragged ? 1 + fit.ragged_chain : 1) * fit.chain * (p.direction == Direction::dw ? w.m : w.depth);
  double total = fit.start_us + us(product) + chain_us(chain, device);
  const double written = static_cast<double>(p.m) * static_cast<double>(p.rows) * out_size;
  if (p.activation != Activation::none || p.residual)  // an extra pass over the outputs
    total += kLaunchUs + us(memory_seconds((p.residual ? 3.0 : 2.0) * written, device));
  return total;
}

double product_cuda_us(const Problem& p, const plan::Machine& machine, Fit fit) {
  if (p.direction == Direction::dw && p.dtype == DType::f32 && p.tf32) fit.share = kVendorTf32DwShare;
  if (p.direction == Direction::dw && size_of(p.dtype) == 2) {
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
    fit.share += (kLongDwShare - fit.share) * std::min(flops / kLongDwFlops, 1.0);
  }
  return product_cuda_us(p, machine, fit, static_cast<double>(size_of(p.dtype)));
}

// 8-bit products, whose outputs are f32 or 16 bits.
double scaled_cuda_us(const ScaledProblem& p, const plan::Machine& machine, Fit fit) {
  using namespace cuda;
  const double size = static_cast<double>(size_of(p.out));
  fit.share = kVendorF8Share;
  const double total = product_cuda_us(forward_of(p), machine, fit, size);
  if (p.out != DType::f32) return total;
  // An f32 output needs an extra pass for the bias and one each for the scales of tokens and of outputs,
  // which the plan does not know.
  const double written = static_cast<double>(p.m) * static_cast<double>(p.rows) * size;
  return total + (p.bias ? 3 : 2) * (kLaunchUs + us(memory_seconds(2 * written, Device(machine))));
}

// The scatter of W, or the gather of dW's blocks from a product that is still in L2.
double moving_cuda_us(const Problem& p, const plan::Machine& machine) {
  using namespace cuda;
  const Bytes bytes = bytes_of(p);
  const bool gathers = p.direction == Direction::dw;
  const double moved = gathers ? bytes.stored : bytes.stored + bytes.dense;
  return kLaunchUs + fit_of(p).moving * us(memory_seconds(moved, Device(machine)));
}

Problem of_one_block(const LinearProblem& p) {
  Problem same;
  same.direction = p.direction, same.dtype = p.dtype, same.m = p.m, same.rows = p.rows, same.cols = p.cols;
  same.block = {static_cast<std::int32_t>(p.rows), static_cast<std::int32_t>(p.cols)}, same.blocks = 1;
  same.bias = p.bias, same.activation = p.activation, same.residual = p.residual, same.aligned = p.aligned;
  same.threads = p.threads, same.device = p.device, same.can_gemm = p.can_gemm;
  return same;
}

}  // namespace

double predict_us(const Problem& p, const plan::Machine& machine) {
  return p.device >= 0 ? moving_cuda_us(p, machine) + product_cuda_us(p, machine, fit_of(p))
                       : cpu::kCallUs + generic::predict_dense_on_cpu_us(generic::dense_problem(p, machine));
}

double predict_us(const ScaledProblem& p, const plan::Machine& machine) {
  const Problem same = forward_of(p);
  return moving_cuda_us(same, machine) + scaled_cuda_us(p, machine, fit_of(same));
}

double product_us(const Problem& p, const plan::Machine& machine) {
  return product_cuda_us(p, machine, fit_of(p));
}

double product_us(const LinearProblem& p, const plan::Machine& machine) {
  return product_us(of_one_block(p), machine);
}

double copy_us(const LinearProblem& p, const plan::Machine& machine) {
  return copy_us(of_one_block(p), machine);
}

double copy_us(const Problem& p, const plan::Machine& machine) {
  return p.device >= 0 ? product_cuda_us(p, machine, fit_of_copy(p))
                       : cpu::kCallUs + generic::predict_gemm_on_cpu_us(generic::dense_problem(p, machine));
}

double copy_us(const ScaledProblem& p, const plan::Machine& machine) {
  return scaled_cuda_us(p, machine, fit_of_copy(forward_of(p)));
}

}  // namespace sparseloom::kernels::dense
