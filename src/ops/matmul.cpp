// The products linear, linear_dx and linear_dw: checks the arguments once at the boundary, fills in the
// kernel's arguments and launches it. scaled.cpp has the 8-bit product.
#include <string>

#include "core/check.h"
#include "ops/activation.h"
#include "ops/call.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

using bsr_linear::Linear;
using ops::check_aligned, ops::check_bias, ops::check_matrix, ops::launch, ops::row_distance;

void check_planned(const char* op, Direction direction, const Plan& plan, const IndexView& index,
                   std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  if (p.direction != direction)
    core::fail(op, std::string("a plan for ") + name_of(direction), name_of(p.direction),
               "make one plan for each direction");
  ops::check_call(op, p, plan, index, workspace, executor);
  ops::require_lent(op, p.can_gemm, "GEMM", executor.gemm != nullptr);
}

MatmulArgs arguments(const Plan& plan, const IndexView& index, const ConstMatrixView& a,
                     std::span<std::byte> workspace, const Executor& executor) {
  MatmulArgs args = ops::arguments(plan.problem, index, a, workspace, executor);
  args.direction = plan.problem.direction;
  args.out_dtype = plan.problem.dtype;
  args.tf32 = plan.problem.tf32;
  return args;
}

// `pre` is null if the caller does not want the pre-activation.
void forward(const Plan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
             const Addends& addends, const MatrixView* pre, const MatrixView& y,
             std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  const auto& [bias, residual] = addends;
  check_planned("linear", Direction::forward, plan, index, workspace, executor);
  if (p.glu) core::fail("linear", "a plan of one weight", "one with problem.glu", "call linear_glu");
  check_matrix("linear", "x", x, p.m, p.cols, p.dtype);
  check_matrix("linear", "y", y, p.m, p.rows, p.dtype);
  if (p.m == 0 || p.rows == 0) return;  // before the bias is checked, since an empty one may be null
  check_bias("linear", p, bias);
  ops::check_values("linear", "values", p, values);
  if ((residual.data != nullptr) != p.residual)
    core::fail("linear", p.residual ? "a residual, as planned" : "no residual, as planned",
               residual.data ? "one" : "none", "plan for what the call passes");
  if (p.residual) check_matrix("linear", "residual", residual, p.m, p.rows, p.dtype);
  check_aligned("linear", plan, values, {x, residual}, {y, pre != nullptr ? *pre : MatrixView{}});
  // Fill the arguments of the kernel.
  MatmulArgs args = arguments(plan, index, x, workspace, executor);
  args.values = values;
  args.bias = bias;
  args.residual = residual.data;
  args.residual_stride = row_distance(residual);
  args.out = y.data;
  args.out_stride = row_distance(y);
  // Launch. If the kernel cannot store the pre-activation, it writes that alone and a second pass activates;
  // if it cannot add the residual, a second pass adds it to y.
  const Linear::Traits& kernel = plan.chosen->traits;
  if (pre != nullptr) check_matrix("linear", "pre", *pre, p.m, p.rows, p.dtype);
  if (pre != nullptr && !kernel.stores_pre) {
    args.activation = Activation::none;
    args.residual = nullptr;
    args.out = pre->data;
    args.out_stride = row_distance(*pre);
    launch("linear", plan, args, executor);
    return ops::activate(*pre, p.activation, residual, y, executor);
  }
  if (pre != nullptr) args.pre = pre->data, args.pre_stride = row_distance(*pre);
  const bool adds = p.dtype != DType::f32 || kernel.adds_f32_residual;
  if (!adds) args.residual = nullptr;
  launch("linear", plan, args, executor);
  if (p.residual && !adds) ops::activate(y, Activation::none, residual, y, executor);
}

}  // namespace

void linear(const Plan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
            const Addends& addends, const MatrixView& y, std::span<std::byte> workspace,
            const Executor& executor) {
  forward(plan, x, index, values, addends, nullptr, y, workspace, executor);
}

void ops::linear_saving(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                        const void* values, const Addends& addends, const MatrixView& pre,
                        const MatrixView& y, std::span<std::byte> workspace, const Executor& executor) {
  forward(plan, x, index, values, addends, &pre, y, workspace, executor);
}

void linear_glu(const Plan& plan, const ConstMatrixView& x, const GluWeight& gates, const GluWeight& factors,
                const MatrixView& y, std::span<std::byte> workspace, const Executor& executor) {
  constexpr const char* op = "linear_glu";
  const Problem& p = plan.problem;
  check_planned(op, Direction::forward, plan, gates.index, workspace, executor);
  if (!p.glu) core::fail(op, "a plan with problem.glu", "one without", "plan the gated linear unit");
  Problem of_factors = p;
  of_factors.blocks = p.factor_blocks;
  ops::check_call(op, of_factors, plan, factors.index, workspace, executor);
  check_matrix(op, "x", x, p.m, p.cols, p.dtype);
  check_matrix(op, "y", y, p.m, p.rows, p.dtype);
  if (p.m == 0 || p.rows == 0) return;
  check_bias(op, p, gates.bias);
  check_bias(op, p, factors.bias);
  ops::check_values(op, "values", p, gates.values);
  ops::check_values(op, "the factors' values", of_factors, factors.values);
  check_aligned(op, plan, gates.values, {x}, {y});
  check_aligned(op, plan, factors.values, {}, {});
  MatmulArgs args = arguments(plan, gates.index, x, workspace, executor);
  args.glu = true;
  args.values = gates.values, args.bias = gates.bias;
  args.factor_index = factors.index, args.factor_values = factors.values, args.factor_bias = factors.bias;
  args.out = y.data;
  args.out_stride = row_distance(y);
  launch(op, plan, args, executor);
}

void linear_dx(const Plan& plan, const ConstMatrixView& dy, const IndexView& index,
               const TransposedView& transposed, const void* values, const MatrixView& dx,
               std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  check_planned("linear_dx", Direction::dx, plan, index, workspace, executor);
  check_matrix("linear_dx", "dy", dy, p.m, p.rows, p.dtype);
  check_matrix("linear_dx", "dx", dx, p.m, p.cols, p.dtype);
  if (p.m == 0 || p.cols == 0) return;
  ops::check_values("linear_dx", "values", p, values);
  ops::check_transposed("linear_dx", p, index, transposed);
  check_aligned("linear_dx", plan, values, {dy}, {dx});
  MatmulArgs args = arguments(plan, index, dy, workspace, executor);
  args.transposed = transposed;
  args.values = values;
  args.out = dx.data;
  args.out_stride = row_distance(dx);
  launch("linear_dx", plan, args, executor);
}

void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x, const IndexView& index,
               void* dvalues, std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  check_planned("linear_dw", Direction::dw, plan, index, workspace, executor);
  check_matrix("linear_dw", "dy", dy, p.m, p.rows, p.dtype);
  check_matrix("linear_dw", "x", x, p.m, p.cols, p.dtype);
  if (p.blocks == 0 || (p.m == 0 && p.accumulate)) return;
  ops::check_values("linear_dw", "dvalues", p, dvalues);
  check_aligned("linear_dw", plan, p.accumulate ? nullptr : dvalues, {dy, x}, {});
  MatmulArgs args = arguments(plan, index, dy, workspace, executor);
  args.b = x.data;
  args.b_stride = row_distance(x);
  args.out = dvalues;
  args.accumulate = p.accumulate;
  launch("linear_dw", plan, args, executor);
  // Kernels write the blocks that the index stores; split-K also adds up the undefined content of free slots.
  if (p.facts.moving) {
    const auto bytes =
        static_cast<std::int64_t>(size_of(p.accumulate ? DType::f32 : p.dtype)) * index.block_elements();
    clear_free_blocks(dvalues, bytes, index.crow + index.block_rows(), index.blocks, executor);
  }
}

}  // namespace sparseloom
