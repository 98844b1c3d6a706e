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
#include "plan.h"
#include "registration.h"
#include "sparseloom/bitmap_ops.h"

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

std::string plan(const PlanCall& call) {
  call.require_sizes(3, "rows, cols, stored");
  BitmapView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.stored = call.sizes[2];
  return plan_of<BitmapLinear>(call, w);
}

const FamilyPlan kPlan("bitmap_linear", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("bitmap_linear", TORCH_BOX(&linear));
  m.impl("bitmap_dx", TORCH_BOX(&dx));
}
