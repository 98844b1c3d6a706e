// The operator plan, which every family of products implements: the call that it explains, and the answer as
// JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert.h"
#include "sparseloom/activation.h"
#include "sparseloom/direction.h"
#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/verb.h"

namespace sparseloom::binding {

using Numbers = std::vector<std::int64_t>;

/// The call to explain: the arguments of the operator plan by name, checked.
struct PlanCall {
  std::string family;
  Numbers sizes;
  Direction direction;
  DType dtype;
  std::optional<DType> out;  // for 8-bit operands, if the call names it
  std::int64_t m;            // tokens, or images of a convolution
  std::int64_t device;       // a CUDA ordinal, or -1
  bool bias;
  Activation activation;
  bool residual;
  std::string row;  // a kernel's name, or empty: the plan's own choice
  bool strict, tf32;
  std::int64_t digest;
  bool use_fast_accum, accumulate, aligned;
  std::optional<Tensor> index;

  /// An executor for planning only. Planning queues no product, so it needs no stream, nor a GPU that this
  /// torch could reach.
  Executor executor() const;

  /// Throws Error unless there are as many sizes as `names`, a list with commas, has names, and none is
  /// negative.
  void require_sizes(std::size_t count, const char* names) const;

  template <class Problem>
  void describe(Problem& problem) const {
    problem.bias = bias, problem.activation = activation, problem.residual = residual;
    problem.strict = strict;
  }
  /// describe for a product of 8-bit operands, which has no residual.
  template <class Problem>
  void describe_scaled(Problem& problem) const {
    problem.bias = bias, problem.activation = activation, problem.strict = strict;
    problem.fast_accum = use_fast_accum;
  }
};

/// {"kernel", "predicted_us", "workspace_bytes", "dense_copy_us", "candidates", "text"}. `copy_us`: the time
/// of the product with a dense copy of W, if the verb predicts it, otherwise null.
std::string json_of(const Choice& plan, const std::optional<double>& copy_us, const std::string& text);

/// Registers the answer of the operator plan for a family of products: each has one, at the end of its
/// operators' file.
struct FamilyPlan {
  using Answer = std::string (*)(const PlanCall&);
  /// `scaled` answers for 8-bit operands.
  FamilyPlan(const char* family, Answer plan, Answer scaled);
};

}  // namespace sparseloom::binding
