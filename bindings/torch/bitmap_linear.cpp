// The operators of bitmap weights: products and plans.
#include "sparseloom/bitmap_linear.h"

#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "held_indices.h"
#include "linear_of.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "registration.h"
#include "rounded.h"
#include "scales.h"
#include "scratch.h"
#include "sparseloom/bitmap_ops.h"
#include "sparseloom/scaled_of.h"

namespace sparseloom::binding {
namespace {

/// The index of a weight with `cols` columns, with valid content.
BitmapView view_of(const char* op, const Tensor& bits, const Tensor& crow, std::int64_t cols) {
  BitmapView w;
  w.crow = indices_of(op, "crow", crow, -1, -1, "values");
  require_cpu(op, "bits", bits);
  require_cols(op, cols);
  w.rows = rows_of(op, crow), w.cols = cols;
  if (bits.scalar_type() != ScalarType::Byte || bits.dim() != 2 || bits.size(0) != w.rows ||
      bits.size(1) != w.row_bytes() || !bits.is_contiguous())
    core::fail(op,
               "bits uint8 [" + std::to_string(w.rows) + ", " + std::to_string(w.row_bytes()) +
                   "], contiguous, for a weight of " + std::to_string(cols) + " columns",
               "torch.ScalarType " + std::to_string(static_cast<int>(bits.scalar_type())) + " of shape " +
                   shape_of(bits),
               "pass the index of this weight");
  w.bits = static_cast<const std::uint8_t*>(bits.const_data_ptr());
  w.stored = w.crow[w.rows];
  const std::optional<std::uint64_t> content = content_number(bits, crow);
  bitmap_require_valid(op, w, content ? &*content : nullptr);
  return w;
}

Tensor values_for(const char* op, const Tensor& values, const BitmapView& w) {
  require_cpu(op, "values", values);
  require_stored(op, values, w.stored);
  return as_contiguous(values);
}

Tensor linear(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& crow,
              std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
              std::int64_t row, bool strict) {
  constexpr const char* op = "bitmap_linear";
  require_cpu(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  const BitmapView w = view_of(op, bits, crow, input.view.cols);
  require_same_dtype(op, input.view.dtype, "values", values);
  const Tensor stored = values_for(op, values, w);
  return linear_of<BitmapLinear>(op, x, input, stored, w, bias, activation, residual, -1, row, strict);
}

Tensor dx(const Tensor& dy, const Tensor& values, const Tensor& bits, const Tensor& crow, std::int64_t cols,
          std::int64_t row, bool strict) {
  constexpr const char* op = "bitmap_dx";
  require_cpu(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  const BitmapView w = view_of(op, bits, crow, cols);
  require_same_dtype(op, grad.view.dtype, "values", values);
  const Tensor stored = values_for(op, values, w);
  return dx_of<BitmapLinear>(op, dy, grad, stored, w, -1, row, strict);
}

Tensor dw(const Tensor& dy, const Tensor& x, const Tensor& bits, const Tensor& crow, std::int64_t stored,
          std::int64_t row, bool strict) {
  constexpr const char* op = "bitmap_dw";
  require_cpu(op, "dy", dy), require_cpu(op, "x", x);
  const Matrix grad = matrix_of(op, "dy", dy), input = matrix_of(op, "x", x);
  const BitmapView w = view_of(op, bits, crow, input.view.cols);
  if (stored != w.stored)
    core::fail(op, "stored = " + std::to_string(w.stored) + ", as the bits say", std::to_string(stored),
               "pass the index of this weight");
  return dw_of<BitmapLinear>(op, dy, grad, x, input, {w.stored}, w, row, strict);
}

Tensor pack(const Tensor& dense, const Tensor& bits, const Tensor& crow, std::int64_t stored) {
  constexpr const char* op = "bitmap_pack";
  require_cpu(op, "dense", dense);
  const Matrix matrix = matrix_of(op, "dense", dense);
  const BitmapView w = view_of(op, bits, crow, matrix.view.cols);
  if (dense.dim() != 2 || matrix.view.rows != w.rows)
    core::fail(op, "a matrix " + core::shape(w.rows, w.cols), shape_of(dense),
               "pass the weight of these bits");
  if (stored != w.stored)
    core::fail(op, "stored = " + std::to_string(w.stored) + ", as the bits say", std::to_string(stored),
               "pass the index of this weight");
  Tensor values = new_like(op, dense, {w.stored});
  bitmap_pack(w, matrix.view, values.mutable_data_ptr(), torch_executor(-1));
  return values;
}

Tensor unpack(const Tensor& values, const Tensor& bits, const Tensor& crow, std::int64_t cols) {
  constexpr const char* op = "bitmap_unpack";
  const DType dtype = dtype_of(op, "values", values);
  const BitmapView w = view_of(op, bits, crow, cols);
  const Tensor stored = values_for(op, values, w);
  Tensor dense = new_like(op, stored, {w.rows, cols});
  bitmap_unpack(w, stored.const_data_ptr(), {dense.mutable_data_ptr(), dtype, w.rows, cols, cols},
                torch_executor(-1));
  return dense;
}

Tensor scaled_linear(const Tensor& x, const Tensor& values, const Tensor& bits, const Tensor& crow,
                     std::optional<Tensor> x_scale, const Tensor& w_scale, ScalarType out_dtype,
                     std::optional<Tensor> bias, std::int64_t activation, std::int64_t row, bool strict) {
  constexpr const char* op = "bitmap_scaled_linear";
  constexpr int device = -1;
  require_cpu(op, "x", x);
  const DType dtype = multiplied_as(op, x, values, device), out = out_of(op, out_dtype);
  const Matrix input = matrix_of(op, "x", x);
  const BitmapView w = view_of(op, bits, crow, input.view.cols);
  const Tensor stored = values_for(op, values, w);
  if (dtype_of(op, "values", stored) != dtype)
    core::fail(op, std::string("values of x's dtype ") + name_of(dtype),
               name_of(dtype_of(op, "values", stored)), "quantize both operands to one dtype");
  const RoundedX taken(op, input.view, dtype, x_scale, device);
  const Factors of_w = factors_of(op, "w_scale", w_scale, w.rows, "output feature", device);
  const std::optional<Tensor> dense_bias = scaled_bias_of(op, bias, w.rows, out, device);
  ScaledLinearProblem problem = BitmapScaled::describe(w, dtype, out, input.view.rows);
  problem.bias = bias.has_value(), problem.strict = strict;
  problem.activation = activation_of(op, activation);
  const Tensor y = new_tensor(op, with_features(x, w.rows), out_dtype, device);
  if (input.view.rows == 0 || w.rows == 0) return y;
  const Executor executor = torch_executor(device);
  const auto plan = BitmapScaled::plan(problem, executor, ops::row_name(op, row));
  const std::size_t own = plan->workspace_bytes;
  const Scratch workspace(op, taken.bytes(own), device);
  const auto [operand, factors] = taken.operand(workspace.span(), own, executor);
  MatmulArgs args;
  args.a = operand.data, args.a_stride = operand.stride, args.values = stored.const_data_ptr();
  args.bias = dense_bias ? dense_bias->const_data_ptr() : nullptr;
  args.out = y.mutable_data_ptr(), args.out_stride = w.rows;
  args.a_scale = factors.data(), args.a_scale_each = factors.size() > 1;
  args.w_scale = of_w.span.data(), args.w_scale_each = of_w.span.size() > 1;
  BitmapScaled::run(*plan, args, w, workspace.span().first(own), executor);
  return y;
}

std::string plan(const PlanCall& call) {
  call.require_sizes(3, "rows, cols, stored");
  BitmapView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.stored = call.sizes[2];
  return plan_of<BitmapLinear>(call, w);
}

std::string plan_scaled(const PlanCall& call) {
  call.require_sizes(3, "rows, cols, stored");
  BitmapView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.stored = call.sizes[2];
  ScaledLinearProblem problem = BitmapScaled::describe(w, call.dtype, call.out.value_or(DType::f32), call.m);
  call.describe_scaled(problem);
  const auto plan = BitmapScaled::plan(problem, call.executor(), call.row);
  return json_of(*plan, {}, plan->describe());
}

const FamilyPlan kPlan("bitmap_linear", plan, plan_scaled);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("bitmap_linear", TORCH_BOX(&linear));
  m.impl("bitmap_dx", TORCH_BOX(&dx));
  m.impl("bitmap_dw", TORCH_BOX(&dw));
  m.impl("bitmap_pack", TORCH_BOX(&pack));
  m.impl("bitmap_unpack", TORCH_BOX(&unpack));
  m.impl("bitmap_scaled_linear", TORCH_BOX(&scaled_linear));
}
