// The dense kernel, where D is W scattered into the workspace:
//
//   forward  Y = act(X D^T + bias) + residual
//   dx       dX = dY D
//   dw       D = dY^T X, whose stored blocks are gathered, or added in fp32 (CUDA only)
//   f8e4m3   forward with D of 8 bits and the lent GEMM with scales, whose roundings are the vendor's and not
//            those of args.h (CUDA only)
//
// Every call scatters W, and the prediction includes the cost. Keeping D would silently double the layer's
// memory, so only an explicit freeze() on the layer does that.
#include "kernels/bsr_linear/dense/dense.h"

#include <algorithm>
#include <cstring>

#include "kernels/bsr_linear/dense/predict.h"
#include "kernels/scalar.h"
#include "kernels/shared/activation/activate.h"
#include "kernels/shared/bsr/pack.h"
#include "kernels/shared/bsr/unpack.h"
#include "layout/bsr.h"
#include "runtime/parallel.h"

namespace sparseloom::kernels {
namespace {

// The vendor's 8-bit products (cuBLAS, and so torch) require this compute capability and these multiples of
// features. ScaledGemm guarantees them to the executor that lends one.
constexpr int kScaledSm = 89, kScaledFeatures = 16;

std::string refuse_scaled(const Problem& p, const plan::Machine& machine) {
  if (p.dtype != DType::f8e4m3)
    return std::string("multiplies float8_e4m3fn alone of the 8-bit dtypes, the dtype is ") +
           name_of(p.dtype);
  if (p.device < 0) return "multiplies float8_e4m3fn on CUDA devices only, the operands are on the CPU";
  if (!p.can_gemm) return "the executor lends no GEMM with scales";
  if (const int sm = machine.cuda.sm; sm < kScaledSm)
    return "needs compute capability 8.9 or newer for float8_e4m3fn, the device has " +
           std::to_string(sm / 10) + "." + std::to_string(sm % 10);
  if (p.rows % kScaledFeatures != 0 || p.cols % kScaledFeatures != 0)
    return "multiplies float8_e4m3fn with in and out features in multiples of 16 only, W is [" +
           std::to_string(p.rows) + ", " + std::to_string(p.cols) + "]";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  return {};
}

std::string refusal(const Problem& p, const plan::Machine& machine) {
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return refuse_scaled(p, machine);
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.direction == Direction::dw && p.device < 0)
    return "dw is made at the stored blocks only, without a dense buffer";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  if (p.device >= 0) return {};
  if (machine.rates.gemm_flops <= 0)
    return "the lent GEMM was not measured: sparse wins even against the machine's peak, or another kernel "
           "was forced";
  return {};
}

std::size_t workspace_bytes(const Problem& p, const plan::Machine&) {
  return static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.cols) *
         size_of(p.accumulate ? DType::f32 : p.dtype);
}

// The GEMM ends with the bias. This pass does the rest of the epilogue: out <- act(out) + residual.
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

bool needs_finish(const MatmulArgs& args) {
  return args.activation != Activation::none || args.residual != nullptr;
}

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
  runtime::parallel_for(executor, w.block_rows(), [&](std::int64_t begin, std::int64_t end) {
    layout::Bsr::unpack(w, args.values, dense, begin * w.block.rows, std::min(end * w.block.rows, w.rows));
  });
  executor.gemm(executor.context, gemm_of(args));
  if (needs_finish(args)) finish(args, executor);
  return 0;
}

#ifdef SPARSELOOM_HAVE_CUDA
// A pass of its own adds the bias to f32 outputs, because cuBLAS's 8-bit products take none there.
int launch_scaled(const MatmulArgs& args, const Executor& executor) {
  const IndexView& w = args.index;
  const MatrixView dense{args.workspace, args.dtype, w.rows, w.cols, w.cols},
      out{args.out, args.out_dtype, args.m, w.rows, args.out_stride};
  if (const int error = cuda::sm80_bsr_unpack(w, args.values, dense, args.stream); error != 0) return error;
  const bool bias_behind = args.bias != nullptr && args.out_dtype == DType::f32;
  ScaledGemm product;
  product.a = {args.a, args.dtype, args.m, w.cols, args.a_stride};
  product.b = dense;
  product.c = out;
  product.bias = bias_behind ? nullptr : args.bias;
  product.a_scale = args.a_scale;
  product.b_scale = args.w_scale;
  product.a_scale_each = args.a_scale_each;
  product.b_scale_each = args.w_scale_each;
  product.fast_accum = args.fast_accum;
  product.device = args.device;
  product.stream = args.stream;
  executor.scaled_gemm(executor.context, product);
  if (bias_behind) {
    const ConstMatrixView every_row{args.bias, args.out_dtype, args.m, w.rows, 0};
    if (const int error = cuda::sm80_activate(out, Activation::none, every_row, out, args.stream); error != 0)
      return error;
  }
  return args.activation == Activation::none
             ? 0
             : cuda::sm80_activate(out, args.activation, {}, out, args.stream);
}

int launch_cuda(const MatmulArgs& args, const Executor& executor) {
  if (is_scaled(args.dtype)) return launch_scaled(args, executor);
  const Gemm product = gemm_of(args);
  if (args.direction == Direction::dw) {
    executor.gemm(executor.context, product);
    return args.accumulate ? cuda::sm80_bsr_add(product.c, args.index, args.out, args.stream)
                           : cuda::sm80_bsr_pack(product.c, args.index, args.out, args.stream);
  }
  const MatrixView dense{args.workspace, args.dtype, args.index.rows, args.index.cols, args.index.cols};
  if (const int error = cuda::sm80_bsr_unpack(args.index, args.values, dense, args.stream); error != 0)
    return error;
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
  return {{"dense", plan::Side::any, runtime::Isa::generic, refusal, dense::predict_us, workspace_bytes, true,
           false, nullptr,
           "W is scattered and multiplied whole in every call, so a NaN in x spreads to every output"},
          launch};
}

}  // namespace sparseloom::kernels
