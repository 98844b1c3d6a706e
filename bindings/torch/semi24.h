// The operands that the operators of 2:4 weights share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert.h"
#include "plan.h"
#include "sparseloom/semi24.h"

namespace sparseloom::binding {

/// A 2:4 weight in contiguous tensors. Their sizes and devices are checked; their content only by
/// require_positions.
struct Semi24Weight {
  Tensor values, positions;
  Semi24View view;
  DType dtype;
};

/// Throws Error unless sizes and devices fit; `first` is the argument whose device it is.
Semi24Weight weight_of(const char* op, const Tensor& values, const Tensor& positions, std::int64_t cols,
                       int device, const char* first);

/// Throws Error unless the positions of a weight on the CPU are valid: read whole, or, longer ones, once for
/// each write that torch counts. On a CUDA device none of them leads out of its group, and none is read.
void require_positions(const char* op, const Semi24Weight& w, int device);

/// The metadata of the positions for values of the weight's dtype, computed if missing; on CUDA only.
Tensor metadata_of(const char* op, const std::optional<Tensor>& metadata, const Semi24Weight& w, int device);

/// The answer of the operator plan for 8-bit operands.
std::string plan_semi24_scaled(const PlanCall& call);

}  // namespace sparseloom::binding
