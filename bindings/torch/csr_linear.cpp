// The operators of CSR weights: products and plans.
#include "sparseloom/csr_linear.h"

#include <limits>
#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "held_indices.h"
#include "linear_of.h"
#include "operands.h"
#include "ops/row_number.h"
#include "ops/valid_index.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/csr_ops.h"

namespace sparseloom::binding {
namespace {

void require_countable(const char* op, std::int64_t stored) {
  if (stored > std::numeric_limits<std::int32_t>::max())
    core::fail(op, "at most 2^31 - 1 stored elements", std::to_string(stored),
               "split the weight by rows into several layers");
}

/// Validates an index on a CUDA device, once per number of writes to it.
void require_valid_there(const char* op, const CsrView& w, std::optional<std::uint64_t> writes,
                         const IndexTensors& source, int device) {
  IndexView elements;
  elements.rows = w.rows, elements.cols = w.cols, elements.blocks = w.stored, elements.block = {1, 1};
  elements.crow = w.crow, elements.col = w.col;
  ops::DeviceIndex device_index{op, elements, {w.ccol, w.row, w.slot}};
  device_index.writes = writes.value_or(ops::DeviceIndex::kUncounted), device_index.single_elements = true;
  device_index.source = &source;
  ops::require_valid_on_device(device_index, torch_executor(device));
}

/// The index of a weight, with valid content; on a CUDA device only without `by_column`, whose check reads it
/// too.
CsrView view_of(const char* op, const Tensor& crow, const Tensor& col, std::int64_t cols, int device,
                const char* first, const Tensor* by_column = nullptr) {
  CsrView w;
  w.crow = indices_of(op, "crow", crow, -1, device, first);
  w.col = indices_of(op, "col", col, -1, device, first);
  require_countable(op, col.size(0));
  w.rows = rows_of(op, crow), w.cols = cols, w.stored = col.size(0);
  if (device < 0) {
    const std::optional<std::uint64_t> content = content_number(crow, col);
    csr_require_valid(op, w, content ? &*content : nullptr);
  } else if (by_column == nullptr) {
    require_valid_there(op, w, writes_of({&crow, &col}), IndexTensors(crow, &col), device);
  }
  return w;
}

/// The column index, in the order that the schema of csr_dx defines.
void take_columns(const char* op, const Tensor& crow, const Tensor& col,
                  const std::optional<Tensor>& by_column, CsrView& w, int device) {
  if (!by_column)
    core::fail(op, "by_column on a CUDA device", "none", "pass what layouts.Csr derives of the index");
  const std::int64_t length = w.cols + 1 + 2 * w.stored;
  w.ccol = indices_of(op, "by_column", *by_column, length, device, "dy");
  w.row = w.ccol + w.cols + 1, w.slot = w.row + w.stored;
  require_valid_there(op, w, writes_of({&crow, &col, &*by_column}), IndexTensors(crow, &col, &*by_column),
                      device);
}

Tensor values_for(const char* op, const Tensor& values, const CsrView& w, DType dtype, int device,
                  const char* first) {
  require_device(op, "values", values, device, first);
  require_same_dtype(op, dtype, "values", values);
  require_stored(op, values, w.stored);
  return as_contiguous(values);
}

Tensor linear(const Tensor& x, const Tensor& values, const Tensor& crow, const Tensor& col,
              std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
              std::int64_t row, bool strict) {
  constexpr const char* op = "csr_linear";
  const int device = device_of(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  const CsrView w = view_of(op, crow, col, input.view.cols, device, "x");
  const Tensor stored = values_for(op, values, w, input.view.dtype, device, "x");
  return linear_of<CsrLinear>(op, x, input, stored, w, bias, activation, residual, device, row, strict);
}

Tensor dx(const Tensor& dy, const Tensor& values, const Tensor& crow, const Tensor& col,
          std::optional<Tensor> by_column, std::int64_t cols, std::int64_t row, bool strict) {
  constexpr const char* op = "csr_dx";
  const int device = device_of(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  require_cols(op, cols);
  CsrView w = view_of(op, crow, col, cols, device, "dy", by_column ? &*by_column : nullptr);
  if (device >= 0) take_columns(op, crow, col, by_column, w, device);
  const Tensor stored = values_for(op, values, w, grad.view.dtype, device, "dy");
  return dx_of<CsrLinear>(op, dy, grad, stored, w, device, row, strict);
}

Tensor dw(const Tensor& dy, const Tensor& x, const Tensor& crow, const Tensor& col, std::int64_t row,
          bool strict) {
  constexpr const char* op = "csr_dw";
  const int device = device_of(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy), input = matrix_of(op, "x", x);
  require_device(op, "x", x, device, "dy");
  require_same_dtype(op, grad.view.dtype, "x", x);
  const CsrView w = view_of(op, crow, col, input.view.cols, device, "dy");
  if (grad.view.cols != w.rows || grad.view.rows != input.view.rows)
    core::fail(op, "dy [tokens, " + std::to_string(w.rows) + "] and x [tokens, in features]",
               shape_of(dy) + " and " + shape_of(x), "pass the gradient and the input of one call");
  CsrLinear::Problem problem = CsrLinear::describe(w, Direction::dw, grad.view.dtype, grad.view.rows);
  problem.strict = strict;
  const Tensor out = new_like(op, dy, {w.stored});
  if (w.stored == 0) return out;
  MatmulArgs args;
  args.a = grad.view.data, args.a_stride = grad.view.stride;
  args.b = input.view.data, args.b_stride = input.view.stride;
  args.out = out.mutable_data_ptr();
  run<CsrLinear>(op, problem, args, w, device, row);
  return out;
}

std::string plan(const PlanCall& call) {
  call.require_sizes(3, "rows, cols, stored");
  CsrView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.stored = call.sizes[2];
  require_countable("plan", w.stored);
  return plan_of<CsrLinear>(call, w);
}

const FamilyPlan kPlan("csr_linear", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("csr_linear", TORCH_BOX(&linear));
  m.impl("csr_dx", TORCH_BOX(&dx));
  m.impl("csr_dw", TORCH_BOX(&dw));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  using namespace sparseloom::binding;
  m.impl("csr_linear", TORCH_BOX(&linear));
  m.impl("csr_dx", TORCH_BOX(&dx));
  m.impl("csr_dw", TORCH_BOX(&dw));
}
