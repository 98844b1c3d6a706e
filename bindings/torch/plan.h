// The operator plan, which every family of products answers: the call that it explains, and the answer as
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

/// The call that a plan is asked for: the arguments of the operator plan by name, checked.
struct PlanCall {
  std::string family;
  Numbers sizes;
  Direction direction;
  DType dtype;
  std::optional<DType> out;  // of 8-bit operands, where the call names it
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
  /// The same for a product of 8-bit operands, which has no residual.
  template <class Problem>
  void describe_scaled(Problem& problem) const {
    problem.bias = bias, problem.activation = activation, problem.strict = strict;
    problem.fast_accum = use_fast_accum;
  }
};

/// {"kernel", "predicted_us", "workspace_bytes", "dense_copy_us", "candidates", "text"}. `copy_us`: what the
/// product with a dense copy of W would take, where the verb tells; else null. `dense_us`: one that makes
/// that copy, of verbs that have no row for it; the key of that name is there with a value alone.
std::string json_of(const Choice& plan, const std::optional<double>& copy_us, const std::string& text,
                    const std::optional<double>& dense_us = std::nullopt);

/// The answer of each family, in the file of its operators.
std::string plan_bsr(const PlanCall& call);
std::string plan_semi24(const PlanCall& call);
std::string plan_semi24_scaled(const PlanCall& call);
std::string plan_csr(const PlanCall& call);
std::string plan_nmg(const PlanCall& call);
std::string plan_bsr_conv(const PlanCall& call);

}  // namespace sparseloom::binding
