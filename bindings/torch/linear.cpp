// The operators bsr_linear, bsr_linear_dx, bsr_linear_dw and bsr_linear_dw_add. Each checks its arguments,
// makes a plan (cached), and runs it on torch's threads or stream in torch's memory.
#include "linear.h"

#include <limits>
#include <optional>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "ops/activation.h"
#include "ops/dense_copy.h"
#include "ops/row_number.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/ops.h"

namespace sparseloom::binding {

Problem problem_of(Direction direction, DType dtype, std::int64_t m, const IndexView& index,
                   std::int64_t digest, bool strict, bool tf32) {
  Problem problem = describe(index, dtype, direction, m);
  problem.facts = Facts::of_digest(digest);
  problem.strict = strict;
  problem.tf32 = tf32;
  return problem;
}

IndexView stored_part(const char* op, const IndexView& index, std::int64_t digest, int device) {
  if (!Facts::of_digest(digest).moving || device >= 0) return index;
  IndexView stored = index;
  stored.blocks = index.crow[index.block_rows()];
  if (stored.blocks < 0 || stored.blocks > index.blocks)
    core::fail(op, "crow to end within its " + std::to_string(index.blocks) + " slots",
               std::to_string(stored.blocks), "write the index by update_topology only");
  return stored;
}

Tensor forward(const Tensor& x, const Tensor& given_values, const Tensor& packed, std::int64_t out_features,
               const std::optional<Tensor>& bias, std::int64_t activation,
               const std::optional<Tensor>& residual, std::int64_t row, bool strict, bool tf32,
               std::int64_t digest, std::optional<Tensor>* pre) {
  constexpr const char* op = "linear";
  const int device = device_of(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  require_device(op, "values", given_values, device, "x");
  const Tensor values = as_contiguous(given_values);
  const BlockShape block = block_of_values(op, values);
  const IndexView slots = index_of(op, packed, values.size(0), out_features, input.view.cols, block, device,
                                   "x", {.digest = digest});
  const void* data = values_of(op, values, slots);
  const IndexView index = stored_part(op, slots, digest, device);
  require_same_dtype(op, input.view.dtype, "values", values);
  if (is_scaled(input.view.dtype))
    core::fail(op, std::string("scales beside ") + name_of(input.view.dtype) + " operands", "none",
               "call scaled_linear, which takes them");
  const std::vector<std::int64_t> sizes = with_features(x, out_features);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, input.view.dtype, device);
  const Executor executor = torch_executor(device);
  Problem problem =
      problem_of(Direction::forward, input.view.dtype, input.view.rows, index, digest, strict, tf32);
  epilogue.describe(problem);
  problem.aligned = is_aligned(input.view) && is_aligned(epilogue.residual.view) && is_aligned(data);
  problem.out_aligned = is_aligned({nullptr, input.view.dtype, input.view.rows, out_features, out_features});
  const auto plan = make_plan(problem, index, executor, ops::row_name(op, row));
  const Tensor y = new_like(op, x, sizes);
  const Scratch workspace(op, plan->workspace_bytes, device);
  const Addends addends = epilogue.addends();
  const auto view = [&](const Tensor& t) {
    return writable(t, input.view.dtype, input.view.rows, out_features);
  };
  if (pre == nullptr) {
    sparseloom::linear(*plan, input.view, index, data, addends, view(y), workspace.span(), executor);
  } else {
    *pre = new_like(op, x, sizes);
    ops::linear_saving(*plan, input.view, index, data, addends, view(**pre), view(y), workspace.span(),
                       executor);
  }
  return y;
}

Tensor linear(const Tensor& x, const Tensor& values, const Tensor& index, std::int64_t out_features,
              std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
              std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  return forward(x, values, index, out_features, bias, activation, residual, row, strict, tf32, digest,
                 nullptr);
}

Tensor linear_glu(const Tensor& x, const Tensor& given_values, const Tensor& packed,
                  const Tensor& given_factor_values, const Tensor& packed_factors, std::int64_t out_features,
                  std::optional<Tensor> bias, std::optional<Tensor> factor_bias, std::int64_t activation,
                  std::int64_t row, bool strict, std::int64_t digest) {
  constexpr const char* op = "linear_glu";
  const int device = device_of(op, "x", x);
  if (device < 0)
    core::fail(op, "operands on a CUDA device", "on the CPU", "call linear twice, and multiply the results");
  const Matrix input = matrix_of(op, "x", x);
  const DType dtype = input.view.dtype;
  if (is_scaled(dtype))
    core::fail(op, "f16 or bf16", name_of(dtype), "call scaled_linear twice, and multiply its results");
  if (bias.has_value() != factor_bias.has_value())
    core::fail(op, "a bias of both weights or of neither", "that of one", "pass zeros for the other");
  // The operands of one of the two weights.
  struct Operands {
    Tensor values;
    std::optional<Tensor> bias;
    IndexView index;
    const void* data;
  };
  const auto operands_of = [&](const char* name, const Tensor& given, const Tensor& index,
                               const std::optional<Tensor>& given_bias) {
    require_device(op, name, given, device, "x");
    require_same_dtype(op, dtype, name, given);
    Operands operands{
        as_contiguous(given), bias_of(op, given_bias, out_features, dtype, device), {}, nullptr};
    operands.index = index_of(op, index, operands.values.size(0), out_features, input.view.cols,
                              block_of_values(op, operands.values), device, "x", {.digest = digest});
    operands.data = values_of(op, operands.values, operands.index);
    return operands;
  };
  const Operands gates = operands_of("values", given_values, packed, bias),
                 factors = operands_of("factor_values", given_factor_values, packed_factors, factor_bias);
  const Executor executor = torch_executor(device);
  Problem problem =
      problem_of(Direction::forward, dtype, input.view.rows, gates.index, digest, strict, false);
  problem.glu = true;
  problem.factor_blocks = factors.index.blocks;
  problem.bias = bias.has_value();
  problem.activation = activation_of(op, activation);
  problem.aligned = is_aligned(input.view) && is_aligned(gates.data) && is_aligned(factors.data);
  problem.out_aligned = is_aligned({nullptr, dtype, input.view.rows, out_features, out_features});
  const auto plan = make_plan(problem, gates.index, executor, ops::row_name(op, row));
  const Tensor y = new_like(op, x, with_features(x, out_features));
  const Scratch workspace(op, plan->workspace_bytes, device);
  const auto weight_of = [](const Operands& operands) {
    return GluWeight{operands.index, operands.data,
                     operands.bias ? operands.bias->const_data_ptr() : nullptr};
  };
  sparseloom::linear_glu(*plan, input.view, weight_of(gates), weight_of(factors),
                         writable(y, dtype, input.view.rows, out_features), workspace.span(), executor);
  return y;
}

Tensor linear_dx(const Tensor& dy, const Tensor& given_values, const Tensor& packed, std::int64_t in_features,
                 std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  constexpr const char* op = "linear_dx";
  const int device = device_of(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  require_device(op, "values", given_values, device, "dy");
  const Tensor values = as_contiguous(given_values);
  const BlockShape block = block_of_values(op, values);
  const IndexView slots = index_of(op, packed, values.size(0), grad.view.cols, in_features, block, device,
                                   "dy", {.columns = true, .digest = digest});
  require_same_dtype(op, grad.view.dtype, "values", values);
  const Executor executor = torch_executor(device);
  const void* data = values_of(op, values, slots);
  const IndexView index = stored_part(op, slots, digest, device);
  Problem problem = problem_of(Direction::dx, grad.view.dtype, grad.view.rows, index, digest, strict, tf32);
  problem.aligned = is_aligned(grad.view) && is_aligned(data);
  problem.out_aligned = is_aligned({nullptr, grad.view.dtype, grad.view.rows, in_features, in_features});
  const auto plan = make_plan(problem, index, executor, ops::row_name(op, row));
  const Tensor dx = new_like(op, dy, with_features(dy, in_features));
  const Scratch workspace(op, plan->workspace_bytes, device);
  sparseloom::linear_dx(*plan, grad.view, index, column_index(slots), data,
                        writable(dx, grad.view.dtype, grad.view.rows, in_features), workspace.span(),
                        executor);
  return dx;
}

namespace {

// dW as a new tensor, or added to `sum`, which the caller calls `name`; returns the tensor written.
Tensor weight_gradient(const char* op, const Tensor& dy, const Tensor& x, const Tensor& packed,
                       std::int64_t blocks, std::int64_t block_rows, std::int64_t block_cols,
                       std::int64_t row, bool strict, bool tf32, std::int64_t digest,
                       const Tensor* sum = nullptr, const char* name = nullptr) {
  const int device = device_of(op, "x", x);
  require_device(op, "dy", dy, device, "x");
  const Matrix grad = matrix_of(op, "dy", dy), input = matrix_of(op, "x", x);
  const BlockShape block = block_of(op, grad.view.cols, input.view.cols, block_rows, block_cols);
  const IndexView slots =
      index_of(op, packed, blocks, grad.view.cols, input.view.cols, block, device, "x", {.digest = digest});
  const IndexView index = stored_part(op, slots, digest, device);
  require_same_dtype(op, input.view.dtype, "dy", dy);
  if (grad.view.rows != input.view.rows)
    core::fail(op, "dy with x's " + std::to_string(input.view.rows) + " rows", std::to_string(grad.view.rows),
               "pass the gradient of this x's output");
  if (sum != nullptr) require_gradient(op, name, *sum, slots, device);
  const Executor executor = torch_executor(device);
  Problem problem = problem_of(Direction::dw, grad.view.dtype, grad.view.rows, index, digest, strict, tf32);
  problem.accumulate = sum != nullptr;
  problem.aligned = is_aligned(grad.view) && is_aligned(input.view);
  const auto plan = make_plan(problem, index, executor, ops::row_name(op, row));
  const Tensor dvalues = sum != nullptr ? *sum : new_like(op, x, {slots.blocks, block.rows, block.cols});
  const Scratch workspace(op, plan->workspace_bytes, device);
  sparseloom::linear_dw(*plan, grad.view, input.view, index, dvalues.mutable_data_ptr(), workspace.span(),
                        executor);
  // On CUDA linear_dw itself clears the free slots, whose number only the device knows.
  if (index.blocks < slots.blocks && sum == nullptr)
    clear_free_blocks(dvalues.mutable_data_ptr(), index.block_elements() * dvalues.element_size(),
                      slots.crow + slots.block_rows(), slots.blocks, executor);
  return dvalues;
}

}  // namespace

Tensor linear_dw(const Tensor& dy, const Tensor& x, const Tensor& index, std::int64_t blocks,
                 std::int64_t block_rows, std::int64_t block_cols, std::int64_t row, bool strict, bool tf32,
                 std::int64_t digest) {
  return weight_gradient("linear_dw", dy, x, index, blocks, block_rows, block_cols, row, strict, tf32,
                         digest);
}

void add_weight_gradient(const char* op, const char* name, const Tensor& dvalues, const Tensor& dy,
                         const Tensor& x, const Tensor& index, std::int64_t blocks, std::int64_t row,
                         bool strict, bool tf32, std::int64_t digest) {
  if (dvalues.dim() != 3)
    core::fail(op, std::string(name) + " of shape [blocks, block rows, block cols]", shape_of(dvalues),
               "make it like the values");
  weight_gradient(op, dy, x, index, blocks, dvalues.size(1), dvalues.size(2), row, strict, tf32, digest,
                  &dvalues, name);
}

void linear_dw_add(const Tensor& dvalues, const Tensor& dy, const Tensor& x, const Tensor& index,
                   std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  const std::int64_t blocks = dvalues.dim() > 0 ? dvalues.size(0) : 0;
  add_weight_gradient("linear_dw", "dvalues", dvalues, dy, x, index, blocks, row, strict, tf32, digest);
}

namespace {

std::string plan(const PlanCall& call) {
  constexpr const char* op = "plan";
  call.require_sizes(5, "rows, cols, block_rows, block_cols, blocks");
  if (!call.index) core::fail(op, "an index beside the sizes of bsr_linear", "none", "pass the packed index");
  const std::int64_t rows = call.sizes[0], cols = call.sizes[1];
  const IndexView slots = packed_of(op, *call.index, call.sizes[4], rows, cols,
                                    block_of(op, rows, cols, call.sizes[2], call.sizes[3]));
  const IndexView index = stored_part(op, slots, call.digest, static_cast<int>(call.device));
  const Executor executor = call.executor();
  const auto answer = [&](auto problem) {
    problem.aligned = problem.aligned && call.aligned;
    problem.out_aligned = problem.out_aligned && call.aligned;
    const auto chosen = make_plan(problem, index, executor, call.row);
    return json_of(*chosen, ops::dense_copy_us(*chosen, executor), chosen->describe());
  };
  if (is_scaled(call.dtype)) {
    ScaledProblem problem = describe_scaled(index, call.dtype, call.out.value_or(DType::f32), call.m);
    problem.facts = Facts::of_digest(call.digest);
    call.describe_scaled(problem);
    return answer(problem);
  }
  Problem problem =
      problem_of(call.direction, call.dtype, call.m, index, call.digest, call.strict, call.tf32);
  call.describe(problem);
  problem.accumulate = call.accumulate;
  return answer(problem);
}

const FamilyPlan kPlan("bsr_linear", plan, plan);

double glu_ratio(Numbers sizes, Text dtype_name, std::int64_t m, std::int64_t device, bool bias,
                 std::int64_t activation) {
  constexpr const char* op = "glu_ratio";
  const std::string dtype = taken(dtype_name);
  if (sizes.size() != 6 || m < 0)
    core::fail(op, "rows, cols, block_rows, block_cols and two numbers of blocks, and 0 tokens and more",
               std::to_string(sizes.size()) + " sizes and " + std::to_string(m) + " tokens",
               "pass the sizes of both weights");
  if (device < 0 || (dtype != "bf16" && dtype != "f16")) return std::numeric_limits<double>::infinity();
  PlanCall call{};
  call.device = device;
  const Executor executor = call.executor();
  IndexView index{};
  index.rows = sizes[0], index.cols = sizes[1];
  index.block = block_of(op, sizes[0], sizes[1], sizes[2], sizes[3]);
  const auto predicted_us = [&](std::int64_t blocks, std::int64_t factor_blocks, std::int64_t code) {
    index.blocks = blocks;
    Problem problem = describe(index, dtype == "f16" ? DType::f16 : DType::bf16, Direction::forward, m);
    problem.bias = bias;
    problem.activation = activation_of(op, code);
    problem.glu = factor_blocks > 0;
    problem.factor_blocks = factor_blocks;
    return make_plan(problem, index, executor)->predicted_us;
  };
  try {
    return predicted_us(sizes[4], sizes[5], activation) /
           (predicted_us(sizes[4], 0, activation) + predicted_us(sizes[5], 0, 0));
  } catch (const Error&) {  // no kernel computes it
    return std::numeric_limits<double>::infinity();
  }
}

}  // namespace
}  // namespace sparseloom::binding

// One implementation serves both: the operands have their device. CUDA is registered in builds without CUDA
// kernels too, so that a CUDA tensor gets our Error and not the dispatcher's.
SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("glu_ratio", TORCH_BOX(&sparseloom::binding::glu_ratio));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("bsr_linear", TORCH_BOX(&sparseloom::binding::linear));
  m.impl("bsr_linear_glu", TORCH_BOX(&sparseloom::binding::linear_glu));
  m.impl("bsr_linear_dx", TORCH_BOX(&sparseloom::binding::linear_dx));
  m.impl("bsr_linear_dw", TORCH_BOX(&sparseloom::binding::linear_dw));
  m.impl("bsr_linear_dw_add", TORCH_BOX(&sparseloom::binding::linear_dw_add));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("bsr_linear", TORCH_BOX(&sparseloom::binding::linear));
  m.impl("bsr_linear_glu", TORCH_BOX(&sparseloom::binding::linear_glu));
  m.impl("bsr_linear_dx", TORCH_BOX(&sparseloom::binding::linear_dx));
  m.impl("bsr_linear_dw", TORCH_BOX(&sparseloom::binding::linear_dw));
  m.impl("bsr_linear_dw_add", TORCH_BOX(&sparseloom::binding::linear_dw_add));
}
