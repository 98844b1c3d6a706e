#include "operands.h"

#include <string>

#include "core/check.h"

namespace sparseloom::binding {

Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

std::vector<std::int64_t> sizes_of(const Tensor& tensor) {
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

std::vector<std::int64_t> with_features(const Tensor& like, std::int64_t features) {
  std::vector<std::int64_t> sizes = sizes_of(like);
  sizes.back() = features;
  return sizes;
}

MatrixView writable(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {tensor.mutable_data_ptr(), dtype, rows, cols, cols};
}

void require_same_dtype(const char* op, DType expected, const char* name, const Tensor& tensor) {
  const DType actual = dtype_of(op, name, tensor);
  if (actual != expected)
    core::fail(op, std::string(name) + " of x's dtype " + name_of(expected), name_of(actual),
               "convert the input or the module with .to(dtype)");
}

void require_gradient(const char* op, const char* name, const Tensor& gradient, const IndexView& index,
                      int device) {
  require_device(op, name, gradient, device, "x");
  const bool fits = gradient.dim() == 3 && gradient.size(0) == index.blocks &&
                    gradient.size(1) == index.block.rows && gradient.size(2) == index.block.cols;
  if (!fits || gradient.scalar_type() != ScalarType::Float || !gradient.is_contiguous())
    core::fail(op,
               std::string(name) + " to add to as contiguous float32 of shape [" +
                   std::to_string(index.blocks) + ", " + std::to_string(index.block.rows) + ", " +
                   std::to_string(index.block.cols) + "]",
               "torch.ScalarType " + std::to_string(static_cast<int>(gradient.scalar_type())) + " of shape " +
                   shape_of(gradient) + (gradient.is_contiguous() ? "" : ", not contiguous"),
               "make it with torch.zeros(values.shape, dtype=torch.float32, device=values.device)");
}

std::optional<Tensor> bias_of(const char* op, const std::optional<Tensor>& bias, std::int64_t out_features,
                              DType dtype, int device) {
  if (!bias) return {};
  require_device(op, "bias", *bias, device, "x");
  require_same_dtype(op, dtype, "bias", *bias);
  if (bias->dim() != 1 || bias->size(0) != out_features)
    core::fail(op, "bias of shape [" + std::to_string(out_features) + "]", shape_of(*bias),
               "one value for each output feature");
  return as_contiguous(*bias);
}

Activation activation_of(const char* op, std::int64_t code) {
  if (code < 0 || code >= kActivationCount) {
    std::string rows;
    for (int row = 0; row < kActivationCount; ++row)
      rows += (row == 0                     ? ""
               : row + 1 < kActivationCount ? ", "
                                            : " or ") +
              std::to_string(row) + " " + kActivations[row].name;
    core::fail(op, "activation " + rows, std::to_string(code), "pass one of them");
  }
  return static_cast<Activation>(code);
}

Matrix residual_of(const char* op, const std::optional<Tensor>& residual, const Tensor& x,
                   const std::vector<std::int64_t>& sizes, DType dtype, int device) {
  if (!residual) return {x, {}};
  require_device(op, "residual", *residual, device, "x");
  require_same_dtype(op, dtype, "residual", *residual);
  if (sizes_of(*residual) != sizes) {
    std::string text;
    for (const std::int64_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    core::fail(op, "a residual of y's shape " + text + "]", shape_of(*residual), "expand it to that shape");
  }
  return matrix_of(op, "residual", *residual);
}

}  // namespace sparseloom::binding
