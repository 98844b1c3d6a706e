// Stable torch tensors -> the core's views, checked once at the op boundary.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/plan.h"

namespace sparseloom::binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Throws Error on a dtype without kernels, or a device other than the CPU.
DType dtype_of(const char* op, const char* name, const Tensor& tensor);
ScalarType scalar_type_of(DType dtype) noexcept;
void require_cpu(const char* op, const char* name, const Tensor& tensor);

/// A 1-D to N-D tensor as the matrix [product of the leading sizes, last size]. `owner` keeps alive the contiguous copy that is
/// made when the strides allow no such view (transposed, expanded, step in the last dimension).
struct Matrix {
  Tensor owner;
  ConstMatrixView view;
};
Matrix matrix_of(const char* op, const char* name, const Tensor& tensor);

/// int32, contiguous, 1-D, on the CPU; the expected number of elements, or any when expected < 0.
const std::int32_t* indices_of(const char* op, const char* name, const Tensor& tensor, std::int64_t expected);

/// Supported block sides and non-negative sizes that fit an int32 grid, else Error.
BlockShape block_of(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t block_rows, std::int64_t block_cols);

/// Borrowed row index over crow and col; their sizes are checked, their contents were validated when the pattern was made.
IndexView index_of(const char* op, const Tensor& crow, const Tensor& col, std::int64_t rows, std::int64_t cols, BlockShape block);

/// values [blocks, bm, bn], contiguous: its data, after its shape was checked against col's length.
BlockShape block_of_values(const char* op, const Tensor& values);
const void* values_of(const char* op, const Tensor& values, const IndexView& index);

/// "[3, 4, 5]"
std::string shape_of(const Tensor& tensor);

inline Tensor new_like(const Tensor& like, const std::vector<std::int64_t>& sizes) { return torch::stable::new_empty(like, sizes); }
Tensor new_cpu(const std::vector<std::int64_t>& sizes, ScalarType type);

/// bool [block rows, block cols]
Tensor mask_of(const BlockPattern& pattern);

}  // namespace sparseloom::binding
