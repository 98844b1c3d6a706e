// The operators of bitmap weights: products and plans.
#include "sparseloom/bitmap_linear.h"

#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/bitmap_ops.h"

namespace sparseloom::binding {
namespace {

/// The index of a weight with `cols` columns, with valid content.
BitmapView view_of(const char* op, const Tensor& bits, const Tensor& crow, std::int64_t cols) {
  BitmapView w;
  w.crow = indices_of(op, "crow", crow, -1, -1, "values");
  require_cpu(op, "bits", bits);
  if (crow.size(0) < 1) core::fail(op, "crow [rows + 1]", shape_of(crow), "pass the index of one weight");
  if (cols < 0) core::fail(op, "cols of 0 and more", std::to_string(cols), "pass the weight's in features");
  w.rows = crow.size(0) - 1, w.cols = cols;
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
  const std::optional<std::uint64_t> writes = writes_of({&bits, &crow});
  bitmap_require_valid(op, w, writes ? &*writes : nullptr);
  return w;
}

Tensor values_for(const char* op, const Tensor& values, const BitmapView& w) {
  require_cpu(op, "values", values);
  if (values.dim() != 1 || values.size(0) != w.stored)
    core::fail(op, "values [" + std::to_string(w.stored) + "]", shape_of(values),
               "pass values and index of one weight");
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
  const std::vector<std::int64_t> sizes = with_features(x, w.rows);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, input.view.dtype, -1);
  auto problem = BitmapLinear::describe(w, Direction::forward, input.view.dtype, input.view.rows);
  epilogue.describe(problem), problem.strict = strict;
  const Tensor y = new_like(op, x, sizes);
  if (input.view.rows == 0 || w.rows == 0) return y;
  MatmulArgs args;
  args.a = input.view.data, args.a_stride = input.view.stride;
  args.values = stored.const_data_ptr();
  epilogue.fill(args);
  args.out = y.mutable_data_ptr(), args.out_stride = w.rows;
  run<BitmapLinear>(op, problem, args, w, -1, row);
  return y;
}

Tensor dx(const Tensor& dy, const Tensor& values, const Tensor& bits, const Tensor& crow, std::int64_t cols,
          std::int64_t row, bool strict) {
  constexpr const char* op = "bitmap_dx";
  require_cpu(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  const BitmapView w = view_of(op, bits, crow, cols);
  require_same_dtype(op, grad.view.dtype, "values", values);
  const Tensor stored = values_for(op, values, w);
  if (grad.view.cols != w.rows)
    core::fail(op, "dy with " + std::to_string(w.rows) + " features", shape_of(dy),
               "pass the gradient of this layer's output");
  auto problem = BitmapLinear::describe(w, Direction::dx, grad.view.dtype, grad.view.rows);
  problem.strict = strict;
  const Tensor out = new_like(op, dy, with_features(dy, cols));
  if (grad.view.rows == 0 || cols == 0) return out;
  MatmulArgs args;
  args.a = grad.view.data, args.a_stride = grad.view.stride;
  args.values = stored.const_data_ptr();
  args.out = out.mutable_data_ptr(), args.out_stride = cols;
  run<BitmapLinear>(op, problem, args, w, -1, row);
  return out;
}

std::string plan(const PlanCall& call) {
  call.require_sizes(3, "rows, cols, stored");
  BitmapView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.stored = call.sizes[2];
  BitmapLinear::Problem problem = BitmapLinear::describe(w, call.direction, call.dtype, call.m);
  call.describe(problem);
  const auto chosen = BitmapLinear::plan(problem, call.executor(), call.row);
  return json_of(*chosen, {}, chosen->describe());
}

const FamilyPlan kPlan("bitmap_linear", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("bitmap_linear", TORCH_BOX(&linear));
  m.impl("bitmap_dx", TORCH_BOX(&dx));
}
