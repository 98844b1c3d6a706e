// The operators column_sweep and swap_pairs.
#include "sparseloom/one_shot.h"

#include <cstdint>
#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"

namespace sparseloom::binding {
namespace {

/// Checks a matrix of one type on a device; `dense`: contiguous, otherwise contiguous in its rows.
void require(const char* op, const char* name, const Tensor& tensor, ScalarType type, std::int64_t rows,
             std::int64_t cols, bool dense, int device) {
  require_device(op, name, tensor, device, "weights");
  const bool fits = tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == cols;
  if (!fits || tensor.scalar_type() != type ||
      (dense ? !tensor.is_contiguous() : cols > 1 && tensor.stride(1) != 1))
    core::fail(op,
               std::string(name) + (type == ScalarType::Bool ? " bool " : " float32 ") +
                   core::shape(rows, cols) + (dense ? ", contiguous" : " with contiguous rows"),
               "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())) + " of shape " +
                   shape_of(tensor),
               "pass the matrices of one weight");
}

/// Checks one number for each row of a weight.
void require_rows(const char* op, const char* name, const std::optional<Tensor>& tensor, ScalarType type,
                  std::int64_t rows, int device) {
  if (tensor) require_device(op, name, *tensor, device, "weights");
  if (!tensor || tensor->dim() != 1 || tensor->size(0) != rows || tensor->scalar_type() != type ||
      !tensor->is_contiguous())
    core::fail(op,
               std::string(name) + " of one " + (type == ScalarType::Int ? "int32" : "float32") + " a row",
               tensor ? shape_of(*tensor) : std::string("none"), "pass them with a grid");
}

void sweep(const Tensor& weights, const Tensor& factor, const Tensor& mask, const Tensor& errors,
           std::int64_t n, std::int64_t m, std::int64_t grid, const std::optional<Tensor>& tops,
           const std::optional<Tensor>& pins) {
  constexpr const char* op = "column_sweep";
  const int device = device_of(op, "weights", weights);
  const std::int64_t rows = weights.dim() == 2 ? weights.size(0) : -1,
                     cols = weights.dim() == 2 ? weights.size(1) : -1;
  require(op, "weights", weights, ScalarType::Float, rows, cols, false, device);
  require(op, "factor", factor, ScalarType::Float, cols, cols, false, device);
  require(op, "mask", mask, ScalarType::Bool, rows, cols, true, device);
  require(op, "errors", errors, ScalarType::Float, rows, cols, true, device);
  ColumnSweep call;
  call.rows = rows, call.cols = cols, call.n = n, call.m = m;
  call.weights = static_cast<float*>(weights.mutable_data_ptr()), call.stride = weights.stride(0);
  call.factor = static_cast<const float*>(factor.const_data_ptr()), call.factor_stride = factor.stride(0);
  call.mask = static_cast<bool*>(mask.mutable_data_ptr());
  call.errors = static_cast<float*>(errors.mutable_data_ptr());
  if (grid < 0 || grid > 2)
    core::fail(op, "grid 0 (none), 1 (int8) or 2 (e4m3)", std::to_string(grid), "pass 0");
  if (grid > 0) {
    require_rows(op, "tops", tops, ScalarType::Float, rows, device);
    require_rows(op, "pins", pins, ScalarType::Int, rows, device);
    call.grid = static_cast<SweepGrid>(grid);
    call.tops = static_cast<const float*>(tops->const_data_ptr());
    call.pins = static_cast<const std::int32_t*>(pins->const_data_ptr());
  }
  column_sweep(call, torch_executor(device));
}

std::int64_t swaps(const Tensor& weights, const Tensor& values, const Tensor& gram, const Tensor& mask,
                   std::int64_t m, std::int64_t most) {
  constexpr const char* op = "swap_pairs";
  require_cpu(op, "weights", weights);
  const std::int64_t rows = weights.dim() == 2 ? weights.size(0) : -1,
                     cols = weights.dim() == 2 ? weights.size(1) : -1;
  require(op, "weights", weights, ScalarType::Float, rows, cols, true, -1);
  require(op, "values", values, ScalarType::Float, rows, cols, true, -1);
  require(op, "gram", gram, ScalarType::Float, cols, cols, true, -1);
  require(op, "mask", mask, ScalarType::Bool, rows, cols, true, -1);
  PairSwaps call;
  call.rows = rows, call.cols = cols, call.m = m, call.most = most;
  call.weights = static_cast<const float*>(weights.const_data_ptr());
  call.values = static_cast<float*>(values.mutable_data_ptr());
  call.gram = static_cast<const float*>(gram.const_data_ptr());
  call.mask = static_cast<bool*>(mask.mutable_data_ptr());
  return swap_pairs(call, torch_executor());
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("column_sweep", TORCH_BOX(&sweep));
  m.impl("swap_pairs", TORCH_BOX(&swaps));
}
