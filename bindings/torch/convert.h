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

/// Executor::device of a tensor: -1 for the CPU, the ordinal for CUDA. Throws Error on any other device.
int device_of(const char* op, const char* name, const Tensor& tensor);
/// Throws Error when the tensor lies elsewhere than `device`, the place of the operand called `first`.
void require_device(const char* op, const char* name, const Tensor& tensor, int device, const char* first);
void require_cpu(const char* op, const char* name, const Tensor& tensor);

/// Throws Error on a dtype without kernels.
DType dtype_of(const char* op, const char* name, const Tensor& tensor);
ScalarType scalar_type_of(DType dtype) noexcept;
torch::stable::Device torch_device(int device);

/// A 1-D to N-D tensor as the matrix [product of the leading sizes, last size]. `owner` keeps alive the
/// contiguous copy that is made when the strides allow no such view (transposed, expanded, step in the last
/// dimension).
struct Matrix {
  Tensor owner;
  ConstMatrixView view;
};
Matrix matrix_of(const char* op, const char* name, const Tensor& tensor);

/// int32, contiguous, 1-D, on `device` (where the operand called `first` is); the expected number of
/// elements, or any when expected < 0.
const std::int32_t* indices_of(const char* op, const char* name, const Tensor& tensor, std::int64_t expected,
                               int device = -1, const char* first = "the CPU");

/// Supported block sides and non-negative sizes that fit an int32 grid, else Error.
BlockShape block_of(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t block_rows,
                    std::int64_t block_cols);

/// Borrowed row index over crow and col; their sizes and places are checked, their contents were validated
/// when the pattern was made.
IndexView index_of(const char* op, const Tensor& crow, const Tensor& col, std::int64_t rows,
                   std::int64_t cols, BlockShape block, int device = -1, const char* first = "the CPU");

/// values [blocks, bm, bn], contiguous: its data, after its shape was checked against col's length.
BlockShape block_of_values(const char* op, const Tensor& values);
const void* values_of(const char* op, const Tensor& values, const IndexView& index);

/// "[3, 4, 5]"
std::string shape_of(const Tensor& tensor);

/// Uninitialised, of torch's allocator. On CUDA too little memory arrives as an Error whose `actual` is "out
/// of memory", which Python turns into torch.OutOfMemoryError.
Tensor new_like(const char* op, const Tensor& like, const std::vector<std::int64_t>& sizes);
Tensor new_tensor(const char* op, const std::vector<std::int64_t>& sizes, ScalarType type, int device);
Tensor new_bytes(const char* op, std::int64_t bytes, int device);
Tensor new_cpu(const std::vector<std::int64_t>& sizes, ScalarType type);

/// bool [block rows, block cols]
Tensor mask_of(const BlockPattern& pattern);

}  // namespace sparseloom::binding
