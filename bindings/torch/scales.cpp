#include "scales.h"

#include <string>
#include <utility>

#include "core/check.h"
#include "operands.h"

namespace sparseloom::binding {

DType out_of(const char* op, ScalarType type) {
  if (type == ScalarType::BFloat16) return DType::bf16;
  if (type == ScalarType::Float) return DType::f32;
  core::fail(op, "out_dtype bfloat16 or float32",
             "torch.ScalarType " + std::to_string(static_cast<int>(type)),
             "pass one of them and convert the result");
}

DType operand_of(const char* op, const Tensor& x) {
  const DType dtype = dtype_of(op, "x", x);
  if (!is_scaled(dtype))
    core::fail(op, "x of dtype int8 or float8_e4m3fn", name_of(dtype),
               "quantize x, or call linear, which takes no scales");
  return dtype;
}

Factors factors_of(const char* op, const char* name, const Tensor& tensor, std::int64_t count, const char* of,
                   int device) {
  require_device(op, name, tensor, device, "x");
  if (tensor.scalar_type() != ScalarType::Float || (tensor.numel() != 1 && tensor.numel() != count))
    core::fail(op,
               std::string(name) + " of dtype float32 with 1 or " + std::to_string(count) +
                   " elements, one for each " + of,
               "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())) + " of shape " +
                   shape_of(tensor),
               "pass the factors that the operand was divided by");
  Tensor owner = as_contiguous(tensor);
  const auto* const data = static_cast<const float*>(owner.const_data_ptr());
  return {std::move(owner), {data, static_cast<std::size_t>(tensor.numel())}};
}

std::optional<Tensor> scaled_bias_of(const char* op, const std::optional<Tensor>& bias, std::int64_t rows,
                                     DType out, int device) {
  if (!bias) return {};
  require_device(op, "bias", *bias, device, "x");
  if (dtype_of(op, "bias", *bias) != out || bias->dim() != 1 || bias->size(0) != rows)
    core::fail(op, "bias of shape [" + std::to_string(rows) + "] and of out_dtype, " + name_of(out),
               std::string(name_of(dtype_of(op, "bias", *bias))) + " of shape " + shape_of(*bias),
               "convert it with .to(out_dtype)");
  return as_contiguous(*bias);
}

}  // namespace sparseloom::binding
