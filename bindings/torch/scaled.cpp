// The operator bsr_scaled_linear, the 8-bit forward product. As in linear.cpp: check, plan (cached), run. On
// CPUs x may be floating point, which the call rounds into its workspace: a call and two tensors less.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear.h"
#include "operands.h"
#include "ops/row_number.h"
#include "registration.h"
#include "scales.h"
#include "scratch.h"
#include "sparseloom/ops.h"
#include "sparseloom/quantize.h"

namespace sparseloom::binding {
namespace {

constexpr const char* kOp = "scaled_linear";

// Rows that a call rounds to int8 by itself: their bytes and factors, behind the plan's workspace.
struct Rounded {
  std::int64_t rows, cols;
  bool given;
  std::size_t values_at(std::size_t workspace) const { return core::round_up(workspace, kAlign); }
  std::size_t scale_at(std::size_t workspace) const {
    return core::round_up(values_at(workspace) + static_cast<std::size_t>(rows * cols), kAlign);
  }
  std::size_t bytes(std::size_t workspace) const {
    return scale_at(workspace) + (given ? 0 : static_cast<std::size_t>(rows) * sizeof(float));
  }
  static constexpr std::size_t kAlign = 64;
};

// What x is multiplied as: itself, or on CPUs, where x is floating point beside int8 values, its rounded
// rows.
DType multiplied_as(const Tensor& x, const Tensor& values, int device) {
  const DType dtype = dtype_of(kOp, "x", x);
  const bool rounds = device < 0 && (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16) &&
                      dtype_of(kOp, "values", values) == DType::i8;
  return rounds ? DType::i8 : operand_of(kOp, x);
}

Tensor scaled_linear(const Tensor& x, const Tensor& given_values, const Tensor& packed,
                     std::optional<Tensor> x_scale, const Tensor& w_scale, std::int64_t out_features,
                     ScalarType out_dtype, std::optional<Tensor> bias, std::int64_t activation,
                     std::int64_t row, bool strict, std::int64_t digest, bool use_fast_accum) {
  const int device = device_of(kOp, "x", x);
  const DType dtype = multiplied_as(x, given_values, device), out = out_of(kOp, out_dtype);
  const Matrix input = matrix_of(kOp, "x", x);
  require_device(kOp, "values", given_values, device, "x");
  const Tensor values = as_contiguous(given_values);
  if (dtype_of(kOp, "values", values) != dtype)
    core::fail(kOp, std::string("values of x's dtype ") + name_of(dtype),
               name_of(dtype_of(kOp, "values", values)), "quantize both operands to one dtype");
  const BlockShape block = block_of_values(kOp, values);
  const IndexView index = index_of(kOp, packed, values.size(0), out_features, input.view.cols, block, device,
                                   "x", {.digest = digest});
  const bool rounds = input.view.dtype != dtype;
  if (!x_scale && !rounds)
    core::fail(kOp, "x_scale beside x in 8 bits", "none", "pass the factors that quantize_rows returned");
  if (x_scale && rounds && x_scale->numel() != 1)
    core::fail(kOp, "x_scale of one element, or none, beside x that the call rounds", shape_of(*x_scale),
               "leave it out: every token gets a factor of its own");
  std::optional<Factors> of_x;
  if (x_scale) of_x = factors_of(kOp, "x_scale", *x_scale, rounds ? 1 : input.view.rows, "token", device);
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
  problem.aligned = (rounds || is_aligned(input.view)) && is_aligned(data);
  problem.out_aligned = is_aligned({nullptr, out, input.view.rows, out_features, out_features});
  const auto plan = make_plan(problem, index, executor, ops::row_name(kOp, row));
  const Tensor y = new_tensor(kOp, with_features(x, out_features), out_dtype, device);
  const std::size_t own = plan->workspace_bytes;
  const Rounded rows{input.view.rows, input.view.cols, of_x.has_value()};
  const Scratch workspace(kOp, rounds ? rows.bytes(own) : own, device);
  ConstMatrixView operand = input.view;
  std::span<const float> factors;
  if (of_x) factors = of_x->span;
  if (rounds) {
    auto* const values_at = reinterpret_cast<std::int8_t*>(workspace.span().data() + rows.values_at(own));
    auto* const scale_at = reinterpret_cast<float*>(workspace.span().data() + rows.scale_at(own));
    quantize_rows(input.view, of_x ? factors.data() : nullptr, {values_at, of_x ? nullptr : scale_at},
                  executor);
    operand = {values_at, DType::i8, rows.rows, rows.cols, rows.cols};
    if (!of_x) factors = {scale_at, static_cast<std::size_t>(rows.rows)};
  }
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
