// The operator quantize_rows.
#include "sparseloom/quantize.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "registration.h"

namespace sparseloom::binding {
namespace {

std::tuple<Tensor, Tensor> quantize_rows(const Tensor& x, std::optional<Tensor> given) {
  constexpr const char* op = "quantize_rows";
  const int device = device_of(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  if (given && (given->scalar_type() != ScalarType::Float || given->numel() != 1))
    core::fail(op, "a scale of float32 with one element", shape_of(*given), "leave it out, or pass one");
  if (given) require_device(op, "scale", *given, device, "x");
  std::vector<std::int64_t> sizes = sizes_of(x);
  const Tensor values = new_tensor(op, sizes, ScalarType::Char, device);
  sizes.back() = given ? 0 : 1;
  const Tensor scale = new_tensor(op, sizes, ScalarType::Float, device);
  sparseloom::quantize_rows(
      input.view, given ? static_cast<const float*>(given->const_data_ptr()) : nullptr,
      {static_cast<std::int8_t*>(values.mutable_data_ptr()), static_cast<float*>(scale.mutable_data_ptr())},
      torch_executor(device));
  return {values, scale};
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("quantize_rows", TORCH_BOX(&sparseloom::binding::quantize_rows));
}
