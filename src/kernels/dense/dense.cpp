// forward: Y = act(X D^T + bias) + residual, dx: dX = dY D, where D is W scattered into the workspace; on CUDA also dw: D = dY^T X,
// gathered, or in fp32, whose gathered blocks are added. The scatter happens in every call and its price is in the prediction:
// keeping D would silently double the layer's memory, so only an explicit freeze() on the layer does that.
#include "kernels/dense/dense.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cost.h"
#include "kernels/cuda/launch.h"
#include "kernels/scalar.h"
#include "layout/unpack_rows.h"
#include "runtime/parallel.h"

namespace sparseloom::kernels {
namespace {

std::string refusal(const Problem& p, const plan::Machine& machine) {
  if (p.strict) return "strict forbids going dense";
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.direction == Direction::dw && p.device < 0) return "dw is made at the stored blocks only, without a dense buffer";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  if (p.device >= 0) return {};
  if (machine.rates.gemm_flops <= 0)
    return "the lent GEMM was not measured: sparse wins even against the machine's peak, or another kernel was forced";
  return {};
}

// Scatter: every element of D is written once and, by the GEMM, read once; the values are read once.
double predict_us(const Problem& p, const plan::Machine& machine) {
  if (p.device >= 0) return cuda::predict_dense_us(p, machine);
  const double bytes = static_cast<double>(p.rows) * static_cast<double>(p.cols) * static_cast<double>(size_of(p.dtype));
  const double product = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  double us = 1e6 * (bytes / (machine.rates.copy_bytes * std::max(1, p.threads)) + product / machine.rates.gemm_flops);
  if (p.activation != Activation::none || p.residual)
    us += 1e6 * static_cast<double>(p.m) * static_cast<double>(p.rows) * 10e-9 / std::max(1, p.threads);
  return us;
}

std::size_t workspace_bytes(const Problem& p, const plan::Machine&) {
  return static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.cols) * size_of(p.accumulate ? DType::f32 : p.dtype);
}

// What the GEMM, which ends with the bias, leaves to do: out <- act(out) + residual.
void finish(const MatmulArgs& args, const Executor& executor) {
  runtime::parallel_for(executor, args.m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t o = 0; o < args.index.rows; ++o) {
        const std::int64_t at = t * args.out_stride + o;
        const double more = args.residual ? load(args.dtype, args.residual, t * args.residual_stride + o) : 0;
        store(args.dtype, args.out, at, activate(args.activation, load(args.dtype, args.out, at)) + more);
      }
  });
}

bool needs_finish(const MatmulArgs& args) { return args.activation != Activation::none || args.residual != nullptr; }

Gemm gemm_of(const MatmulArgs& args) {
  const IndexView& w = args.index;
  const MatrixView dense{args.workspace, args.accumulate ? DType::f32 : args.dtype, w.rows, w.cols, w.cols};
  Gemm product;
  product.device = args.device;
  product.stream = args.stream;
  if (args.direction == Direction::dw) {
    product.a = {args.a, args.dtype, args.m, w.rows, args.a_stride};
    product.a_transposed = true;
    product.b = {args.b, args.dtype, args.m, w.cols, args.b_stride};
    product.c = dense;
    return product;
  }
  const bool forward = args.direction == Direction::forward;
  product.a = {args.a, args.dtype, args.m, forward ? w.cols : w.rows, args.a_stride};
  product.b = dense;
  product.b_transposed = forward;
  product.c = {args.out, args.dtype, args.m, forward ? w.rows : w.cols, args.out_stride};
  product.bias = args.bias;
  return product;
}

int launch_cpu(const MatmulArgs& args, const Executor& executor) {
  const IndexView& w = args.index;
  const MatrixView dense{args.workspace, args.dtype, w.rows, w.cols, w.cols};
  runtime::parallel_for(executor, w.block_rows(),
                        [&](std::int64_t begin, std::int64_t end) { layout::unpack_rows(w, args.values, dense, begin, end); });
  executor.gemm(executor.context, gemm_of(args));
  if (needs_finish(args)) finish(args, executor);
  return 0;
}

#ifdef SPARSELOOM_HAVE_CUDA
int launch_cuda(const MatmulArgs& args, const Executor& executor) {
  const Gemm product = gemm_of(args);
  if (args.direction == Direction::dw) {
    executor.gemm(executor.context, product);
    return args.accumulate ? cuda::sm80_bsr_add(product.c, args.index, args.out, args.stream)
                           : cuda::sm80_bsr_pack(product.c, args.index, args.out, args.stream);
  }
  const MatrixView dense{args.workspace, args.dtype, args.index.rows, args.index.cols, args.index.cols};
  if (const int error = cuda::sm80_bsr_unpack(args.index, args.values, dense, args.stream); error != 0) return error;
  executor.gemm(executor.context, product);
  if (!needs_finish(args)) return 0;
  const ConstMatrixView residual{args.residual, args.dtype, args.m, args.index.rows, args.residual_stride};
  return cuda::sm80_activate(product.c, args.activation, residual, product.c, args.stream);
}
#endif

int launch(const MatmulArgs& args, const Executor& executor) {
#ifdef SPARSELOOM_HAVE_CUDA
  if (args.device >= 0) return launch_cuda(args, executor);
#endif
  return launch_cpu(args, executor);
}

}  // namespace

Kernel dense_kernel() {
  return {{"dense", plan::Side::any, runtime::Isa::generic, refusal, predict_us, workspace_bytes, false, false, nullptr,
           "W is scattered and multiplied whole in every call, so a NaN in x spreads to every output"},
          launch};
}

}  // namespace sparseloom::kernels
