// The operator bsr_scaled_linear, the 8-bit forward product. As in linear.cpp: check, plan (cached), run.
#include <cstdint>
#include <optional>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear.h"
#include "operands.h"
#include "ops/row_number.h"
#include "registration.h"
#include "rounded.h"
#include "scales.h"
#include "scratch.h"
#include "sparseloom/ops.h"

namespace sparseloom::binding {
namespace {

constexpr const char* kOp = "scaled_linear";

Tensor scaled_linear(const Tensor& x, const Tensor& given_values, const Tensor& packed,
                     std::optional<Tensor> x_scale, const Tensor& w_scale, std::int64_t out_features,
                     ScalarType out_dtype, std::optional<Tensor> bias, std::int64_t activation,
                     std::int64_t row, bool strict, std::int64_t digest, bool use_fast_accum) {
  const int device = device_of(kOp, "x", x);
  const DType dtype = multiplied_as(kOp, x, given_values, device), out = out_of(kOp, out_dtype);
  const Matrix input = matrix_of(kOp, "x", x);
  require_device(kOp, "values", given_values, device, "x");
  const Tensor values = as_contiguous(given_values);
  if (dtype_of(kOp, "values", values) != dtype)
    core::fail(kOp, std::string("values of x's dtype ") + name_of(dtype),
               name_of(dtype_of(kOp, "values", values)), "quantize both operands to one dtype");
  const BlockShape block = block_of_values(kOp, values);
  const IndexView index = index_of(kOp, packed, values.size(0), out_features, input.view.cols, block, device,
                                   "x", {.digest = digest});
  const RoundedX taken(kOp, input.view, dtype, x_scale, device);
  const Factors of_w = factors_of(kOp, "w_scale", w_scale, out_features, "output feature", device);
  const std::optional<Tensor> dense_bias = scaled_bias_of(kOp, bias, out_features, out, device);
  const Executor executor = torch_executor(device);
  ScaledProblem problem = describe_scaled(index, dtype, out, input.view.rows);
  problem.facts = Facts::of_digest(digest);
  problem.strict = strict;
  problem.fast_accum = use_fast_accum;
  problem.bias = bias.has_value();
  problem.activation = activation_of(kOp, activation);
  const void* data = values_of(kOp, values, index);
  problem.aligned = (taken.rounds() || is_aligned(input.view)) && is_aligned(data);
  problem.out_aligned = is_aligned({nullptr, out, input.view.rows, out_features, out_features});
  const auto plan = make_plan(problem, index, executor, ops::row_name(kOp, row));
  const Tensor y = new_tensor(kOp, with_features(x, out_features), out_dtype, device);
  const std::size_t own = plan->workspace_bytes;
  const Scratch workspace(kOp, taken.bytes(own), device);
  const auto [operand, factors] = taken.operand(workspace.span(), own, executor);
  sparseloom::linear(*plan, operand, index, data, {factors, of_w.span},
                     dense_bias ? dense_bias->const_data_ptr() : nullptr,
                     writable(y, out, input.view.rows, out_features), workspace.span().first(own), executor);
  return y;
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("bsr_scaled_linear", TORCH_BOX(&sparseloom::binding::scaled_linear));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("bsr_scaled_linear", TORCH_BOX(&sparseloom::binding::scaled_linear));
}
