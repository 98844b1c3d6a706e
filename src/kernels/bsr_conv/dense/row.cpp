// The row `dense`: the executor's convolution with a dense copy of W, which each call makes in its workspace.
#include "kernels/bsr_conv/rows.h"
#include "kernels/runs.h"
#include "kernels/shared/activation/activation.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::kernels {
namespace {

constinit Runs runs{"dense_conv"};

Refusal propose(const bsr_conv::Problem& p, const plan::Machine& machine, Proposals<bsr_conv::Conv>& out) {
  if (p.strict) return "strict forbids going dense";
  if (dense_conv_may_overrun(p))
    return {
        "torch's gradient of W may write past its memory where taps reach beyond a volume's depth and "
        "padding exceeds what keeps it, the padding is {}",
        p.shape.axis[0].padding};
  if (!p.can_gemm) return "the executor lends no convolution";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  const bsr_conv::DenseTime time = dense_conv_time(p, machine);
  if (time.product_us <= 0) return "has no predicted time for fp32 on a GPU unless TF32 is allowed";
  const std::int64_t weight = p.rows * p.cols * p.shape.taps();
  out.add({{}, time.product_us + time.weight_us, static_cast<std::size_t>(weight) * size_of(p.dtype)});
  return {};
}

/// out <- act(out) + residual, which torch's convolutions do not fuse.
int finish(MatmulArgs args, const MatrixView& out, const Executor& executor) {
  if (!generic::needs_epilogue_pass(args)) return 0;
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device >= 0) {
    const ConstMatrixView residual{args.residual, args.dtype, out.rows, out.cols, args.residual_stride};
    return cuda::sm80_activate(out, args.activation, residual, out, args.stream);
  }
#endif
  args.m = out.rows, args.out = out.data, args.out_stride = out.stride;
  generic::epilogue_pass(args, out.cols, executor);
  return 0;
}

int launch(const bsr_conv::Args& args, const Schedule&, const Executor& executor) {
  runs.add();
  const MatmulArgs& product = args.product;
  const ConvShape& shape = args.shape;
  const IndexView& index = product.index;
  const std::int64_t taps = shape.taps(), width = taps * index.cols, x_pixels = shape.in_pixels(),
                     y_pixels = shape.out_pixels();
  const MatrixView weight{product.workspace, product.dtype, index.rows, width, width};
  DenseConv conv;
  conv.direction = product.direction, conv.shape = shape, conv.bias = product.bias;
  conv.device = executor.device, conv.stream = executor.stream;
  if (product.direction == Direction::dw) {
    conv.a = {product.a, product.dtype, y_pixels, index.rows, product.a_stride};
    conv.b = {product.b, product.dtype, x_pixels, index.cols, product.b_stride};
    conv.out = weight;
    executor.conv(executor.context, conv);
    return pack_conv(conv.out, index, taps, product.out, executor);
  }
  const bool forward = product.direction == Direction::forward;
  if (const int error = unpack_conv(index, taps, product.values, weight, executor); error != 0) return error;
  conv.a = {product.a, product.dtype, forward ? x_pixels : y_pixels, forward ? index.cols : index.rows,
            product.a_stride};
  conv.b = weight;
  conv.out = {product.out, product.dtype, forward ? y_pixels : x_pixels, forward ? index.rows : index.cols,
              product.out_stride};
  executor.conv(executor.context, conv);
  return finish(product, conv.out, executor);
}

}  // namespace

bool dense_conv_may_overrun(const bsr_conv::Problem& p) {
  const ConvAxis& depth = p.shape.axis[0];
  const std::int64_t reach = std::int64_t{depth.dilation} * (depth.kernel - 1);
  return p.device < 0 && p.direction == Direction::dw && p.dtype == DType::f32 &&
         runtime::detected_isa().has(runtime::Isa::avx512) && reach >= depth.in &&
         2 * std::int64_t{depth.padding} > reach;
}

ConvRow dense_conv_row() { return {"dense", Placement::any, propose, launch, generic::kDenseCaveat}; }

}  // namespace sparseloom::kernels
