// The operators of 8-bit 2:4 weights: the product with scales, and its plan.
#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear_of.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "scales.h"
#include "semi24.h"
#include "sparseloom/scaled_of.h"

namespace sparseloom::binding {
namespace {

Tensor scaled_linear(const Tensor& x, const Tensor& values, const Tensor& positions, std::int64_t cols,
                     std::optional<Tensor> metadata, const Tensor& x_scale, const Tensor& w_scale,
                     ScalarType out_dtype, std::optional<Tensor> bias, std::int64_t activation,
                     std::int64_t row, bool strict, bool use_fast_accum) {
  constexpr const char* op = "semi24_scaled_linear";
  const int device = device_of(op, "x", x);
  const DType dtype = operand_of(op, x), out = out_of(op, out_dtype);
  const Matrix input = matrix_of(op, "x", x);
  Semi24Weight w = weight_of(op, values, positions, cols, device, "x");
  require_positions(op, w, device);
  if (w.dtype != dtype)
    core::fail(op, std::string("values of x's dtype ") + name_of(dtype), name_of(w.dtype),
               "quantize both operands to one dtype");
  require_inputs(op, x, input, cols);
  const std::int64_t m = input.view.rows, rows = w.view.rows;
  const Factors of_x = factors_of(op, "x_scale", x_scale, m, "token", device);
  const Factors of_w = factors_of(op, "w_scale", w_scale, rows, "output feature", device);
  const std::optional<Tensor> dense_bias = scaled_bias_of(op, bias, rows, out, device);
  ScaledLinearProblem problem = Semi24Scaled::describe(w.view, dtype, out, m);
  problem.bias = bias.has_value(), problem.strict = strict, problem.fast_accum = use_fast_accum;
  problem.activation = activation_of(op, activation);
  const Tensor y = new_tensor(op, with_features(x, rows), out_dtype, device);
  if (m == 0 || rows == 0) return y;
  MatmulArgs args;
  args.a = input.view.data, args.a_stride = input.view.stride;
  args.values = w.values.const_data_ptr();
  args.bias = dense_bias ? dense_bias->const_data_ptr() : nullptr;
  args.out = y.mutable_data_ptr(), args.out_stride = rows;
  args.a_scale = of_x.span.data(), args.a_scale_each = of_x.span.size() > 1;
  args.w_scale = of_w.span.data(), args.w_scale_each = of_w.span.size() > 1;
  std::optional<Tensor> ordered;  // lives until the kernel is queued
  if (device >= 0) {
    ordered = metadata_of(op, metadata, w, device);
    w.view.metadata = static_cast<const std::byte*>(ordered->const_data_ptr());
    problem.aligned = is_aligned(input.view) && is_aligned(args.values) && is_aligned(args.out);
  }
  run<Semi24Scaled>(op, problem, args, w.view, device, row);
  return y;
}

}  // namespace

std::string plan_semi24_scaled(const PlanCall& call) {
  call.require_sizes(2, "rows, cols");
  ScaledLinearProblem problem = Semi24Scaled::describe({call.sizes[0], call.sizes[1], nullptr}, call.dtype,
                                                       call.out.value_or(DType::f32), call.m);
  call.describe_scaled(problem);
  const auto plan = Semi24Scaled::plan(problem, call.executor(), call.row);
  return json_of(*plan, {}, plan->describe());
}

}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("semi24_scaled_linear", TORCH_BOX(&sparseloom::binding::scaled_linear));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("semi24_scaled_linear", TORCH_BOX(&sparseloom::binding::scaled_linear));
}
