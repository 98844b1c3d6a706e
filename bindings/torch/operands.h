// The operands of a product: checks and views that the operators of all products share. `op` and `name` are
// the names of the operator and its argument in errors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "convert.h"
#include "sparseloom/activation.h"

namespace sparseloom::binding {

/// The tensor, copied unless it is contiguous.
Tensor as_contiguous(const Tensor& tensor);

std::vector<std::int64_t> sizes_of(const Tensor& tensor);
/// The sizes of `like` with another last one.
std::vector<std::int64_t> with_features(const Tensor& like, std::int64_t features);

/// A contiguous tensor as a matrix to write.
MatrixView writable(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols);

/// Throws Error unless the tensor is of x's dtype, which is `expected`.
void require_same_dtype(const char* op, DType expected, const char* name, const Tensor& tensor);

/// Throws Error unless dW can be added to the gradient: contiguous float32 with the index's blocks, on x's
/// device.
void require_gradient(const char* op, const char* name, const Tensor& gradient, const IndexView& index,
                      int device);

/// The bias, contiguous, if there is one. Throws Error unless it is on x's device, of x's dtype and has a
/// value per output feature.
std::optional<Tensor> bias_of(const char* op, const std::optional<Tensor>& bias, std::int64_t out_features,
                              DType dtype, int device);

/// The activation of that code. Throws Error if there is none.
Activation activation_of(const char* op, std::int64_t code);

/// The residual as a matrix; one without data if there is none. Throws Error unless it is on x's device and
/// of the result's sizes and dtype.
Matrix residual_of(const char* op, const std::optional<Tensor>& residual, const Tensor& x,
                   const std::vector<std::int64_t>& sizes, DType dtype, int device);

}  // namespace sparseloom::binding
