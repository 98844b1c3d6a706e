// Shared by the operators of products: the epilogue, and plan, scratch and run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "convert.h"
#include "executor.h"
#include "operands.h"
#include "ops/row_number.h"
#include "scratch.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/ops.h"

namespace sparseloom::binding {

/// bias, activation and residual of a call, checked: the bias [features] and a residual of the result's
/// sizes, on x's device and of its dtype.
struct Epilogue {
  std::optional<Tensor> bias;
  Matrix residual;
  bool adds;  // a residual, whose memory may be empty
  Activation activation;

  Epilogue(const char* op, const std::optional<Tensor>& given_bias, std::int64_t code,
           const std::optional<Tensor>& given_residual, const Tensor& x,
           const std::vector<std::int64_t>& sizes, DType dtype, int device)
      : bias(bias_of(op, given_bias, sizes.back(), dtype, device)),
        residual(residual_of(op, given_residual, x, sizes, dtype, device)),
        adds(given_residual.has_value()),
        activation(activation_of(op, code)) {}

  const void* bias_data() const { return bias ? bias->const_data_ptr() : nullptr; }
  Addends addends() const { return {bias_data(), residual.view}; }

  template <class Problem>
  void describe(Problem& problem) const {
    problem.bias = bias.has_value();
    problem.activation = activation;
    problem.residual = adds;
  }
  void fill(MatmulArgs& args) const {
    args.bias = bias_data();
    args.residual = residual.view.data, args.residual_stride = residual.view.stride;
  }
};

/// Plans and runs the product whose operands are in `args`, for a verb like LinearOf's; the workspace comes
/// from torch.
template <class V, class View>
void run(const char* op, const typename V::Problem& problem, const MatmulArgs& args, const View& view,
         int device, std::int64_t row) {
  const Executor executor = torch_executor(device);
  const auto plan = V::plan(problem, executor, ops::row_name(op, row));
  const Scratch workspace(op, plan->workspace_bytes, device);
  V::run(*plan, args, view, workspace.span(), executor);
}

}  // namespace sparseloom::binding
