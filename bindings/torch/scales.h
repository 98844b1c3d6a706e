// The additional arguments of 8-bit products: scales, and outputs of another dtype. `op` is the operator's
// name in errors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "convert.h"

namespace sparseloom::binding {

/// The output dtype. Throws Error unless it is bf16 or f32.
DType out_of(const char* op, ScalarType type);

/// The dtype of x. Throws Error unless it has 8 bits.
DType operand_of(const char* op, const Tensor& x);

/// One factor, or one for each of `count` tokens or features.
struct Factors {
  Tensor owner;
  std::span<const float> span;
};
/// Any shape is accepted, because [tokens], [..., tokens, 1] and [rows, 1] are all in use. Throws Error if
/// dtype, device or number do not match.
Factors factors_of(const char* op, const char* name, const Tensor& tensor, std::int64_t count, const char* of,
                   int device);

/// The bias, contiguous, if there is one. Throws Error unless it is on x's device, of dtype `out` and has a
/// value per output feature.
std::optional<Tensor> scaled_bias_of(const char* op, const std::optional<Tensor>& bias, std::int64_t rows,
                                     DType out, int device);

}  // namespace sparseloom::binding
