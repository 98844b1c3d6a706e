// Declarations shared by the operators that run a plan and the operator that only explains it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::binding {

/// The problem without bias and activation, for operands that are `aligned`.
Problem problem_of(Direction direction, DType dtype, std::int64_t m, const IndexView& index,
                   std::int64_t digest, bool strict, bool tf32);

/// The index with its stored blocks only, if its topology moves and it is in host memory: products on the CPU
/// then see an ordinary index. On CUDA the index itself: only the device knows the number. Throws Error if
/// crow ends outside of the lists.
IndexView stored_part(const char* op, const IndexView& index, std::int64_t digest, int device);

/// The operators themselves, as library.cpp declares them. forward is linear; if `pre` is not null (CUDA
/// only), it also returns x W^T + bias there.
Tensor forward(const Tensor& x, const Tensor& given_values, const Tensor& index, std::int64_t out_features,
               const std::optional<Tensor>& bias, std::int64_t activation,
               const std::optional<Tensor>& residual, std::int64_t row, bool strict, bool tf32,
               std::int64_t digest, std::optional<Tensor>* pre);
Tensor linear(const Tensor& x, const Tensor& values, const Tensor& index, std::int64_t out_features,
              std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
              std::int64_t row, bool strict, bool tf32, std::int64_t digest);
Tensor linear_dx(const Tensor& dy, const Tensor& given_values, const Tensor& index, std::int64_t in_features,
                 std::int64_t row, bool strict, bool tf32, std::int64_t digest);
Tensor linear_dw(const Tensor& dy, const Tensor& x, const Tensor& index, std::int64_t blocks,
                 std::int64_t block_rows, std::int64_t block_cols, std::int64_t row, bool strict, bool tf32,
                 std::int64_t digest);

/// dvalues += dW, in fp32. `op` and `name` are the names of the operator and its dvalues in errors.
void add_weight_gradient(const char* op, const char* name, const Tensor& dvalues, const Tensor& dy,
                         const Tensor& x, const Tensor& index, std::int64_t blocks, std::int64_t row,
                         bool strict, bool tf32, std::int64_t digest);

}  // namespace sparseloom::binding
