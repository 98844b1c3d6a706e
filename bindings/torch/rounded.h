// x of an 8-bit product: in 8 bits with its factors, or, on CPUs beside int8 values, floating point, which
// the call rounds into its workspace: a call and two tensors less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "convert.h"
#include "operands.h"
#include "scales.h"
#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// What x is multiplied as. Throws Error unless it has 8 bits, or is floating point on a CPU beside int8
/// values.
DType multiplied_as(const char* op, const Tensor& x, const Tensor& values, int device);

class RoundedX {
 public:
  /// `dtype`: what x is multiplied as. Throws Error for x in 8 bits without factors, and for factors that do
  /// not fit: one, or for x in 8 bits one for each token.
  RoundedX(const char* op, const ConstMatrixView& x, DType dtype, const std::optional<Tensor>& x_scale,
           int device);

  /// Whether the call rounds x.
  bool rounds() const { return rounds_; }
  /// The bytes of a workspace of which the plan has the first `own`.
  std::size_t bytes(std::size_t own) const;

  struct Operand {
    ConstMatrixView x;
    std::span<const float> factors;  // one, or one for each token
  };
  /// What is multiplied, rounded into the workspace behind the plan's part.
  Operand operand(std::span<std::byte> workspace, std::size_t own, const Executor& executor) const;

 private:
  std::size_t values_at(std::size_t own) const;
  std::size_t scale_at(std::size_t own) const;

  ConstMatrixView x_;
  bool rounds_;
  std::optional<Factors> given_;
};

}  // namespace sparseloom::binding
