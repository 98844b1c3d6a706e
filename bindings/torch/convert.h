// Conversions from stable torch tensors to the core's views. They check once, at the op boundary. `op` and
// `name` are the names of the operator and its argument in errors.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/packed_index.h"
#include "sparseloom/plan.h"

namespace sparseloom::binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Executor::device of a tensor: -1 for the CPU, the ordinal for CUDA. Throws Error on any other device.
int device_of(const char* op, const char* name, const Tensor& tensor);
/// Throws Error if the tensor is not on `device`, the device of the operand called `first`.
void require_device(const char* op, const char* name, const Tensor& tensor, int device, const char* first);
void require_cpu(const char* op, const char* name, const Tensor& tensor);

/// The core's dtype. Throws Error on a dtype without kernels.
DType dtype_of(const char* op, const char* name, const Tensor& tensor);
ScalarType scalar_type_of(DType dtype) noexcept;
torch::stable::Device torch_device(int device);

/// A 1-D to N-D tensor as a matrix: the leading dimensions are flattened. If the strides do not allow that
/// view (transposed, expanded, a step in the last dimension), `owner` keeps alive a contiguous copy.
struct Matrix {
  Tensor owner;
  ConstMatrixView view;
};
Matrix matrix_of(const char* op, const char* name, const Tensor& tensor);

/// The data of an index tensor, which must be int32, contiguous, 1-D and on `device` (that of the operand
/// called `first`) and have `expected` elements (any number if expected < 0). Throws Error otherwise.
const std::int32_t* indices_of(const char* op, const char* name, const Tensor& tensor, std::int64_t expected,
                               int device = -1, const char* first = "the CPU");

/// The block shape. Throws Error unless the block sides are supported and the sizes are non-negative and fit
/// an int32 grid.
BlockShape block_of(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t block_rows,
                    std::int64_t block_cols);

/// The norm named "l1", "l2" or "max" in torch. Throws Error on another name.
BlockNorm block_norm_of(const char* op, const std::string& name);

/// The number of in-place writes to tensors, by torch's count, which `.data` and NumPy evade; nothing if
/// torch does not count them (inference tensors).
std::optional<std::uint64_t> writes_of(std::initializer_list<const Tensor*> tensors);

/// The row index in a packed index of `blocks` blocks (column_index returns the other half). Its size and
/// device are checked; its content only by index_of.
IndexView packed_of(const char* op, const Tensor& packed, std::int64_t blocks, std::int64_t rows,
                    std::int64_t cols, BlockShape block, int device = -1, const char* first = "the CPU");
/// The lists of an index that a call reads, and the index's digest.
struct Reads {
  bool columns = false;
  std::int64_t digest = kUnknownDigest;
};
/// Like packed_of with valid content on a CUDA device, which is read there once per number of writes to it.
/// The operations themselves read host memory in each call.
IndexView index_of(const char* op, const Tensor& packed, std::int64_t blocks, std::int64_t rows,
                   std::int64_t cols, BlockShape block, int device, const char* first, Reads reads = {});
/// Marks a packed index on a CUDA device as valid. `made_in_call`: by this call, perhaps in the memory of a
/// CUDA graph, which counts what is alive in it: such an index is not kept from being freed.
void take_packed_as_valid(const char* op, const Tensor& packed, const IndexView& index, int device,
                          bool made_in_call = false);
/// Like packed_of for a separate crow and col, whose last slots may be free.
IndexView index_of_pair(const char* op, const Tensor& crow, const Tensor& col, std::int64_t rows,
                        std::int64_t cols, BlockShape block, int device = -1, const char* first = "the CPU");

/// The block shape of values [blocks, bm, bn], and their data after the shape was checked against the index.
/// values must be contiguous.
BlockShape block_of_values(const char* op, const Tensor& values);
const void* values_of(const char* op, const Tensor& values, const IndexView& index);

/// "[3, 4, 5]"
std::string shape_of(const Tensor& tensor);

/// A str argument of an operator, which owns it: read once, by taken. An operator of a std::string leaks a
/// copy in each call with the headers of torch 2.11 to 2.13
/// (findings/torch-stable-operators-leak-strings.sh).
using Text = StringHandle;
/// The text of an argument, which is freed.
std::string taken(Text text);

/// Uninitialised tensors from torch's allocator. If CUDA memory runs out, this throws an Error whose `actual`
/// is "out of memory", which Python turns into torch.OutOfMemoryError.
Tensor new_like(const char* op, const Tensor& like, const std::vector<std::int64_t>& sizes);
Tensor new_tensor(const char* op, const std::vector<std::int64_t>& sizes, ScalarType type, int device);
Tensor new_bytes(const char* op, std::int64_t bytes, int device);
Tensor new_cpu(const std::vector<std::int64_t>& sizes, ScalarType type);

/// The pattern as a bool tensor [block rows, block cols] on the CPU.
Tensor mask_of(const BlockPattern& pattern);

}  // namespace sparseloom::binding
