// The operator that searches for an order of a weight's inputs.
#include "sparseloom/channel_order.h"

#include <algorithm>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"

namespace sparseloom::binding {
namespace {

/// The memory of `watch`, an int64 CPU tensor [4] through which progress is seen; null without one.
SearchProgress* progress_of(const char* op, const std::optional<Tensor>& watch) {
  if (!watch) return nullptr;
  const bool fits = watch->dim() == 1 && watch->size(0) == 4 && watch->scalar_type() == ScalarType::Long &&
                    watch->is_contiguous() && watch->is_cpu();
  if (!fits) core::fail(op, "watch int64 [4] on the CPU", shape_of(*watch), "pass zeros");
  static_assert(sizeof(SearchProgress) == 4 * sizeof(std::int64_t));
  return reinterpret_cast<SearchProgress*>(watch->mutable_data_ptr());
}

Tensor channel_order(const Tensor& w, std::int64_t rounds, const std::optional<Tensor>& watch) {
  constexpr const char* op = "semi24_channel_order";
  if (w.dim() != 2) core::fail(op, "a matrix [rows, cols]", shape_of(w), "pass a weight of two dimensions");
  const int device = device_of(op, "w", w);
  const Matrix matrix = matrix_of(op, "w", w);
  const std::vector<std::int64_t> order =
      semi24_channel_order(matrix.view, rounds, torch_executor(device), progress_of(op, watch));
  Tensor result = new_cpu({matrix.view.cols}, ScalarType::Long);
  std::copy(order.begin(), order.end(), static_cast<std::int64_t*>(result.mutable_data_ptr()));
  return result;
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("semi24_channel_order", TORCH_BOX(&sparseloom::binding::channel_order));
}
