// The products linear, linear_dx and linear_dw: checks the arguments once at the boundary, fills the kernel's
// arguments and launches it.
#include <algorithm>
#include <initializer_list>

#include "core/check.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/registry.h"
#include "ops/activation.h"
#include "ops/block_row_hints.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

void check_matrix(const char* op, const char* name, const ConstMatrixView& matrix, std::int64_t rows,
                  std::int64_t cols, DType dtype) {
  if (matrix.rows != rows || matrix.cols != cols)
    core::fail(op, std::string(name) + " of shape " + core::shape(rows, cols),
               core::shape(matrix.rows, matrix.cols), "pass the matrix that the plan was made for");
  if (matrix.dtype != dtype)
    core::fail(op, std::string(name) + " of dtype " + name_of(dtype), name_of(matrix.dtype),
               "convert it, or plan for its dtype");
  if (matrix.rows > 1 && matrix.stride < matrix.cols)
    core::fail(op, std::string(name) + " with row stride >= " + std::to_string(matrix.cols),
               std::to_string(matrix.stride), "pass the number of elements between two rows");
  if (matrix.data == nullptr && rows > 0 && cols > 0)
    core::fail(op, std::string("memory behind ") + name, "null", "pass its data");
}

void check_call(const char* op, Direction direction, const Plan& plan, const IndexView& index,
                std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  if (p.direction != direction)
    core::fail(op, std::string("a plan for ") + name_of(direction), name_of(p.direction),
               "make one plan for each direction");
  if (p.rows != index.rows || p.cols != index.cols || !(p.block == index.block) || p.blocks != index.blocks)
    core::fail(op,
               "the index the plan was made for: " + core::shape(p.rows, p.cols) + ", " +
                   std::to_string(p.blocks) + " blocks",
               core::shape(index.rows, index.cols) + ", " + std::to_string(index.blocks) + " blocks",
               "make a plan for this index");
  if (p.device != executor.device)
    core::fail(op, "an executor on " + ops::place(p.device) + ", as planned", ops::place(executor.device),
               "make the plan with the executor of the call");
  const std::size_t alignment = p.device >= 0 ? 256 : 64;  // alignment of cudaMalloc, and a cache line
  if (workspace.size() < plan.workspace_bytes ||
      reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment != 0)
    core::fail(
        op,
        std::to_string(plan.workspace_bytes) + " bytes of workspace, aligned to " + std::to_string(alignment),
        std::to_string(workspace.size()) + " bytes at offset " +
            std::to_string(reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment),
        "lend plan.workspace_bytes from an aligned allocation");
  if (p.can_gemm && (is_scaled(p.dtype) ? executor.scaled_gemm == nullptr : executor.gemm == nullptr))
    core::fail(op, "an executor that lends a GEMM, as the plan was made with", "none",
               "make the plan with this executor");
}

// Refuses operands that are less aligned than planned, if the kernel depends on it.
void check_aligned(const char* op, const Plan& plan, const void* values,
                   std::initializer_list<ConstMatrixView> read,
                   std::initializer_list<ConstMatrixView> written) {
  const Problem& p = plan.problem;
  const kernels::Kernel& kernel = kernels::registry()[static_cast<std::size_t>(plan.kernel)];
  const kernels::Aligned needs = kernels::bsr_linear::alignment_of(kernel, p);
  const auto all = [](std::initializer_list<ConstMatrixView> matrices) {
    return std::all_of(matrices.begin(), matrices.end(),
                       [](const ConstMatrixView& matrix) { return is_aligned(matrix); });
  };
  const bool fits = needs == kernels::Aligned::none ||
                    (is_aligned(values) && all(read) && (needs == kernels::Aligned::inputs || all(written)));
  if (!fits)
    core::fail(
        op, "operands whose base and rows lie at multiples of 16 bytes, as planned for " + plan.kernel_name,
        "one that does not", "set Problem::aligned or out_aligned to false before make_plan, or align it");
}

// The distance between rows, in elements. Of a single row, which has none, it is a multiple of 16 bytes,
// because the copy engine is told it all the same.
std::int64_t row_distance(const ConstMatrixView& matrix) {
  return matrix.rows > 1 ? matrix.stride : core::round_up(matrix.cols, std::int64_t{16});
}

MatmulArgs arguments(const Plan& plan, const IndexView& index, const ConstMatrixView& a,
                     std::span<std::byte> workspace, const Executor& executor) {
  MatmulArgs args;
  args.direction = plan.problem.direction;
  args.dtype = plan.problem.dtype;
  args.activation = plan.problem.activation;
  args.m = plan.problem.m;
  args.a = a.data;
  args.a_stride = row_distance(a);
  args.index = index;
  args.workspace = workspace.data();
  args.device = executor.device;
  args.stream = executor.stream;
  args.tf32 = plan.problem.tf32;
  args.fast_accum = plan.problem.fast_accum;
  args.out_dtype = plan.problem.out;
  return args;
}

void launch(const char* op, const Plan& plan, MatmulArgs args, const Executor& executor) {
  const runtime::CudaDeviceScope scope(executor.device);
  const auto hints = ops::block_row_hints(plan, args.index);
  if (hints != nullptr) {
    args.block_row_order = hints->order.empty() ? nullptr : hints->order.data();
    args.uneven_block_rows = hints->uneven;
    args.uneven_groups = hints->uneven_groups;
  }
  const kernels::Kernel& kernel = kernels::registry()[static_cast<std::size_t>(plan.kernel)];
  const int error = kernel.outside != nullptr ? kernel.outside->launch(&args, &executor)
                                              : kernel.launch(args, plan.schedule, executor);
  ops::require_queued(op, error, executor, plan.kernel_name);
}

void check_scale(const char* name, std::span<const float> scale, std::int64_t each, const char* of) {
  const auto count = static_cast<std::int64_t>(scale.size());
  if ((count != 1 && count != each) || (count > 0 && scale.data() == nullptr))
    core::fail("linear",
               std::string(name) + " with 1 or " + std::to_string(each) + " fp32 factors, one for each " + of,
               scale.data() == nullptr ? std::to_string(count) + " at address null" : std::to_string(count),
               "pass one factor, or one for each " + std::string(of));
}

// All forward products. `scales` is null for operands that carry none; `pre` is null if the caller does not
// want the pre-activation.
void forward(const Plan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
             const Scales* scales, const Addends& addends, const MatrixView* pre, const MatrixView& y,
             std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  const auto& [bias, residual] = addends;
  check_call("linear", Direction::forward, plan, index, workspace, executor);
  if (is_scaled(p.dtype) != (scales != nullptr))
    core::fail("linear",
               is_scaled(p.dtype) ? std::string("scales beside ") + name_of(p.dtype) + " operands"
                                  : "operands of i8 or f8e4m3 beside scales",
               scales ? name_of(p.dtype) : "none",
               scales ? "leave the scales out, or plan for 8-bit operands"
                      : "pass Scales (from torch: scaled_linear)");
  check_matrix("linear", "x", x, p.m, p.cols, p.dtype);
  check_matrix("linear", "y", y, p.m, p.rows, p.out);
  if (p.m == 0 || p.rows == 0) return;  // before the bias is checked, since an empty one may be null
  if ((bias != nullptr) != p.bias)
    core::fail("linear", p.bias ? "a bias, as planned" : "no bias, as planned", bias ? "one" : "none",
               "plan for what the call passes");
  if ((residual.data != nullptr) != p.residual)
    core::fail("linear", p.residual ? "a residual, as planned" : "no residual, as planned",
               residual.data ? "one" : "none", "plan for what the call passes");
  if (p.residual) check_matrix("linear", "residual", residual, p.m, p.rows, p.out);
  check_aligned("linear", plan, values, {x, residual}, {y, pre != nullptr ? *pre : MatrixView{}});
  // Fill the arguments of the kernel.
  MatmulArgs args = arguments(plan, index, x, workspace, executor);
  args.values = values;
  args.bias = bias;
  args.residual = residual.data;
  args.residual_stride = row_distance(residual);
  args.out = y.data;
  args.out_stride = row_distance(y);
  if (scales != nullptr) {
    check_scale("x's scales", scales->x, p.m, "token");
    check_scale("w's scales", scales->w, p.rows, "output feature");
    args.a_scale = scales->x.data(), args.a_scale_each = scales->x.size() > 1;
    args.w_scale = scales->w.data(), args.w_scale_each = scales->w.size() > 1;
  }
  // Launch. If the kernel cannot store the pre-activation, let it write that alone and activate in a second
  // pass; if it cannot add the residual, add it to y in a second pass.
  const kernels::Kernel& kernel = kernels::registry()[static_cast<std::size_t>(plan.kernel)];
  if (pre != nullptr) check_matrix("linear", "pre", *pre, p.m, p.rows, p.out);
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
  forward(plan, x, index, values, nullptr, addends, nullptr, y, workspace, executor);
}

void linear(const Plan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
            const Scales& scales, const void* bias, const MatrixView& y, std::span<std::byte> workspace,
            const Executor& executor) {
  forward(plan, x, index, values, &scales, bias, nullptr, y, workspace, executor);
}

void ops::linear_saving(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                        const void* values, const Addends& addends, const MatrixView& pre,
                        const MatrixView& y, std::span<std::byte> workspace, const Executor& executor) {
  forward(plan, x, index, values, nullptr, addends, &pre, y, workspace, executor);
}

void linear_dx(const Plan& plan, const ConstMatrixView& dy, const IndexView& index,
               const TransposedView& transposed, const void* values, const MatrixView& dx,
               std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  check_call("linear_dx", Direction::dx, plan, index, workspace, executor);
  check_matrix("linear_dx", "dy", dy, p.m, p.rows, p.dtype);
  check_matrix("linear_dx", "dx", dx, p.m, p.cols, p.dtype);
  if (p.m == 0 || p.cols == 0) return;
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
  check_call("linear_dw", Direction::dw, plan, index, workspace, executor);
  check_matrix("linear_dw", "dy", dy, p.m, p.rows, p.dtype);
  check_matrix("linear_dw", "x", x, p.m, p.cols, p.dtype);
  if (p.blocks == 0 || (p.m == 0 && p.accumulate)) return;
  check_aligned("linear_dw", plan, p.accumulate ? nullptr : dvalues, {dy, x}, {});
  MatmulArgs args = arguments(plan, index, dy, workspace, executor);
  args.b = x.data;
  args.b_stride = row_distance(x);
  args.out = dvalues;
  args.accumulate = p.accumulate;
  launch("linear_dw", plan, args, executor);
}

}  // namespace sparseloom
