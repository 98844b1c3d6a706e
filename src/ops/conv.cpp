// The products of block-sparse convolutions: checks the arguments once at the boundary, fills in the kernel's
// arguments and launches it.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "core/check.h"
#include "kernels/bsr_conv/rows.h"
#include "ops/activation.h"
#include "ops/call.h"
#include "ops/conv_rate.h"
#include "ops/machine.h"
#include "ops/problem.h"
#include "ops/rows.h"
#include "sparseloom/conv_ops.h"
#include "sparseloom/deterministic.h"
#include "sparseloom/rates.h"

namespace sparseloom {
namespace {

using bsr_conv::Conv;
using ops::check_matrix, ops::row_distance;

// The plan cache keys them with 16 bits each (bsr_conv/verb.cpp).
constexpr std::int64_t kTapsLimit = 1 << 16;
// Pixels along an axis, padding included, are counted in 32 bits.
constexpr std::int64_t kExtentLimit = 1 << 30;

void check_within(const char* op, const char* name, std::int64_t got, std::int64_t least,
                  std::int64_t limit) {
  if (got < least || got >= limit)
    core::fail(op, std::string(name) + " in " + std::to_string(least) + ".." + std::to_string(limit - 1),
               std::to_string(got), "pass one number for each axis of space, within these bounds");
}

ConvAxis axis_of(const char* op, const ConvWindow& w) {
  check_within(op, "the extent of x", w.in, 1, kExtentLimit);
  check_within(op, "kernel", w.kernel, 1, kTapsLimit);
  check_within(op, "stride", w.stride, 1, kTapsLimit);
  check_within(op, "padding", w.padding, 0, kTapsLimit);
  check_within(op, "dilation", w.dilation, 1, kTapsLimit);
  const std::int64_t padded = w.in + 2 * w.padding, reach = w.dilation * (w.kernel - 1) + 1;
  if (reach > padded)
    core::fail(op, "taps that reach over at most the padded extent of " + std::to_string(padded),
               std::to_string(reach), "pad x, or pass a smaller kernel or dilation");
  const auto narrow = [](std::int64_t number) { return static_cast<std::int32_t>(number); };
  return {narrow(w.in),      narrow((padded - reach) / w.stride + 1),
          narrow(w.kernel),  narrow(w.stride),
          narrow(w.padding), narrow(w.dilation)};
}

void check_planned(const char* op, Direction direction, const ConvPlan& plan, const IndexView& index,
                   std::span<std::byte> workspace, const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  if (p.direction != direction)
    core::fail(op, std::string("a plan for ") + name_of(direction), name_of(p.direction),
               "make one plan for each direction");
  ops::check_call(op, p, plan, index, workspace, executor);
  ops::require_lent(op, p.can_gemm, "convolution", executor.conv != nullptr);
}

// Checks for a shape that conv_shape would make, and the verb's own members.
void check_problem(const bsr_conv::Problem& p) {
  ops::require_known("plan", p.direction, p.dtype, p.activation);
  std::array<ConvWindow, 3> axes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const ConvAxis& axis = p.shape.axis[i];
    axes[i] = {axis.in, axis.kernel, axis.stride, axis.padding, axis.dilation};
  }
  const ConvShape derived = conv_shape("plan", p.shape.images, axes);
  if (!(derived == p.shape))
    core::fail("plan",
               std::to_string(derived.out_pixels()) + " pixels of y, as x, taps and strides leave them",
               std::to_string(p.shape.out_pixels()), "make the shape with conv_shape");
  const std::int64_t pixels = p.direction == Direction::dx ? derived.in_pixels() : derived.out_pixels();
  if (p.m != pixels)
    core::fail("plan", "m = " + std::to_string(pixels) + ", the pixels of the shape", std::to_string(p.m),
               "make the problem with describe_conv");
  const bool epilogue = p.bias || p.residual || p.activation != Activation::none;
  if (p.accumulate || (p.direction == Direction::dw && epilogue))
    core::fail("plan", "no accumulation, and bias, activation and residual on forward and dx only",
               name_of(p.direction), "add to the gradient, and apply them, in passes of your own");
}

// No row of this verb states its needs: on CUDA every row may rely on the problem's alignment.
void check_aligned(const char* op, const ConvPlan& plan, const void* values,
                   std::initializer_list<ConstMatrixView> read,
                   std::initializer_list<ConstMatrixView> written) {
  using bsr_linear::Aligned;
  const bsr_conv::Problem& p = plan.problem;
  ops::check_aligned(op, plan,
                     p.device < 0 || !p.aligned ? Aligned::none
                     : p.out_aligned            ? Aligned::all
                                                : Aligned::inputs,
                     values, read, written);
}

bsr_conv::Args arguments(const ConvPlan& plan, const IndexView& index, const ConstMatrixView& a,
                         std::span<std::byte> workspace, const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  bsr_conv::Args args{ops::arguments(p, index, a, workspace, executor), p.shape};
  args.product.direction = p.direction;
  args.product.out_dtype = p.dtype;
  args.product.tf32 = p.tf32;
  return args;
}

void launch(const char* op, const ConvPlan& plan, const bsr_conv::Args& args, const Executor& executor) {
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, plan.launch(args, executor), executor, plan.kernel_name);
}

/// Forward and dX with their epilogue; a row may leave activation and residual to a later pass. Rows on the
/// CPU refuse what they do not support.
void launch(const char* op, const ConvPlan& plan, bsr_conv::Args args, const void* values,
            const Addends& addends, const MatrixView& out, const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  const Conv::Traits& row = plan.chosen->traits;
  const bool activates =
                 p.activation == Activation::none || p.direction == Direction::forward || row.activates_dx,
             adds = !p.residual || (activates && row.adds_residual);
  args.product.values = values;
  args.product.bias = addends.bias;
  if (!activates) args.product.activation = Activation::none;
  if (adds) {
    args.product.residual = addends.residual.data;
    args.product.residual_stride = row_distance(addends.residual);
  }
  args.product.out = out.data;
  args.product.out_stride = row_distance(out);
  launch(op, plan, args, executor);
  if (!activates || !adds)
    ops::activate(out, activates ? Activation::none : p.activation, addends.residual, out, executor);
}

// Whether to measure the lent convolution, which costs milliseconds: only if it could win, that is if the
// best sparse prediction is slower than the dense product at the machine's peak.
bool dense_could_win(const bsr_conv::Problem& p, const plan::Machine& machine, const std::string& kernel) {
  if (!p.can_gemm || p.strict || p.device >= 0 || is_deterministic()) return false;
  if (kernels::dense_conv_may_overrun(p)) return false;
  for (const ConvAxis& axis : p.shape.axis)  // what so small an x takes says little, see least_extent
    if (std::int64_t{axis.dilation} * (axis.kernel - 1) >= axis.in) return false;
  if (!kernel.empty()) return kernel == "dense";
  bsr_conv::Problem sparse = p;
  sparse.strict = true;
  const double flops = 2.0 * static_cast<double>(p.shape.out_pixels()) * static_cast<double>(p.rows) *
                       static_cast<double>(p.cols * p.shape.taps());
  const double peak = ops::peak_flops(p.dtype, p.threads, machine.rates);
  try {
    const double best = plan::select(plan::any<Conv>(sparse), machine, {}).choice.predicted_us;
    return peak <= 0 || best > 1e6 * flops / peak;
  } catch (const Error&) {
    return true;  // no sparse row takes the problem
  }
}

// The executor's machine, on the CPU with the rate of its convolution, if that could win. In 16 bits it is
// assumed to run at the rate of the GEMM: torch's own loops could take minutes.
ops::KnownMachine machine_of(const bsr_conv::Problem& p, const Executor& executor,
                             const std::string& kernel) {
  ops::KnownMachine known = ops::known_machine(executor);
  if (dense_could_win(p, known.machine, kernel))
    known.machine.rates.gemm_flops =
        p.dtype == DType::f32
            ? ops::conv_rate(p, executor)
            : rates_for(p.direction, p.dtype, p.shape.out_pixels(), p.rows, p.cols * p.shape.taps(), executor)
                  .gemm_flops;
  return known;
}

// As in make_plan: completes the problem, which is part of the cache key, and checks it.
void complete(bsr_conv::Problem& problem, const IndexView& index, const Executor& executor) {
  ops::enter_own_rows();
  if (problem.direction == Direction::dw) problem.out_aligned = true;  // dvalues count as read
  problem.can_gemm = executor.conv != nullptr;
  ops::complete(problem, index, executor);
  check_problem(problem);
}

std::shared_ptr<const ConvPlan> planned(const bsr_conv::Problem& problem, const Executor& executor,
                                        const std::string& kernel) {
  const bool settled = is_deterministic() && kernel.empty();
  const auto make = [&] {
    const std::string row = settled && executor.device < 0 ? plan::settled<Conv>(problem, executor) : kernel;
    ops::KnownMachine known = machine_of(problem, executor, kernel);
    ConvPlan chosen = plan::typed<Conv>(problem, plan::select(plan::any<Conv>(problem), known.machine, row));
    chosen.machine = std::move(known.line);
    return chosen;
  };
  return plan::cached_as<ConvPlan>(Conv::kName, Conv::key(problem), settled ? plan::kDeterministic : kernel,
                                   make);
}

void check_residual(const char* op, const bsr_conv::Problem& p, const ConstMatrixView& residual,
                    std::int64_t channels) {
  if ((residual.data != nullptr) != p.residual)
    core::fail(op, p.residual ? "a residual, as planned" : "no residual, as planned",
               residual.data ? "one" : "none", "plan for what the call passes");
  if (p.residual) check_matrix(op, "residual", residual, p.m, channels, p.dtype);
}

}  // namespace

ConvShape conv_shape(const char* op, std::int64_t images, std::span<const ConvWindow> axes) {
  check_within(op, "images", images, 0, std::numeric_limits<std::int32_t>::max());
  if (axes.empty() || axes.size() > 3)
    core::fail(op, "one to three axes of space", std::to_string(axes.size()),
               "pass x as [images, channels, *space]");
  ConvShape shape;
  shape.images = static_cast<std::int32_t>(images);
  for (std::size_t i = 0; i < axes.size(); ++i) shape.axis[3 - axes.size() + i] = axis_of(op, axes[i]);
  return shape;
}

bsr_conv::Problem describe_conv(const IndexView& index, const ConvShape& shape, DType dtype,
                                Direction direction) {
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)
    core::fail("conv", "f32, f16 or bf16", name_of(dtype), "convert it, or multiply with the dense weight");
  bsr_conv::Problem problem;
  problem.direction = direction;
  problem.shape = shape;
  ops::describe_index(index, dtype, direction == Direction::dx ? shape.in_pixels() : shape.out_pixels(),
                      problem);
  const auto contiguous = [&](std::int64_t pixels, std::int64_t channels) {
    return ops::packed_is_aligned(dtype, pixels, channels);
  };
  const bool dx = direction == Direction::dx, dw = direction == Direction::dw;
  const bool x = contiguous(shape.in_pixels(), index.cols), y = contiguous(shape.out_pixels(), index.rows);
  problem.aligned = (dx || x) && (y || !(dx || dw));
  problem.out_aligned = dw || (dx ? x : y);
  return problem;
}

std::shared_ptr<const ConvPlan> plan_conv(bsr_conv::Problem problem, const Executor& executor,
                                          const std::string& kernel) {
  const IndexView shape{problem.rows, problem.cols, problem.block, problem.blocks, nullptr, nullptr};
  complete(problem, shape, executor);
  return planned(problem, executor, kernel);
}

std::shared_ptr<const ConvPlan> plan_conv(bsr_conv::Problem problem, const IndexView& index,
                                          const Executor& executor, const std::string& kernel) {
  complete(problem, index, executor);
  ops::require_valid(problem, index);
  return planned(problem, executor, kernel);
}

bsr_conv::DenseTime dense_conv_time(const bsr_conv::Problem& problem, const Executor& executor) {
  if (executor.conv == nullptr || (executor.device < 0 && is_deterministic())) return {};
  bsr_conv::Problem lent = problem;
  lent.device = executor.device, lent.threads = std::max(1, executor.num_threads), lent.can_gemm = true;
  return kernels::dense_conv_time(lent, machine_of(lent, executor, {}).machine);
}

void conv(const ConvPlan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
          const Addends& addends, const MatrixView& y, std::span<std::byte> workspace,
          const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  check_planned("conv", Direction::forward, plan, index, workspace, executor);
  check_matrix("conv", "x", x, p.shape.in_pixels(), p.cols, p.dtype);
  check_matrix("conv", "y", y, p.m, p.rows, p.dtype);
  if (p.m == 0 || p.rows == 0) return;
  ops::check_bias("conv", p, addends.bias);
  ops::check_values("conv", "values", p, values);
  check_residual("conv", p, addends.residual, p.rows);
  check_aligned("conv", plan, values, {x, addends.residual}, {y});
  launch("conv", plan, arguments(plan, index, x, workspace, executor), values, addends, y, executor);
}

void conv_dx(const ConvPlan& plan, const ConstMatrixView& dy, const IndexView& index,
             const TransposedView& transposed, const void* values, const MatrixView& dx,
             std::span<std::byte> workspace, const Executor& executor) {
  conv_dx(plan, dy, index, transposed, values, {}, dx, workspace, executor);
}

void conv_dx(const ConvPlan& plan, const ConstMatrixView& dy, const IndexView& index,
             const TransposedView& transposed, const void* values, const Addends& addends,
             const MatrixView& dx, std::span<std::byte> workspace, const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  check_planned("conv_dx", Direction::dx, plan, index, workspace, executor);
  check_matrix("conv_dx", "dy", dy, p.shape.out_pixels(), p.rows, p.dtype);
  check_matrix("conv_dx", "dx", dx, p.m, p.cols, p.dtype);
  if (p.m == 0 || p.cols == 0) return;
  ops::check_bias("conv_dx", p, addends.bias);
  ops::check_values("conv_dx", "values", p, values);
  ops::check_transposed("conv_dx", p, index, transposed);
  check_residual("conv_dx", p, addends.residual, p.cols);
  check_aligned("conv_dx", plan, values, {dy, addends.residual}, {dx});
  bsr_conv::Args args = arguments(plan, index, dy, workspace, executor);
  args.product.transposed = transposed;
  launch("conv_dx", plan, args, values, addends, dx, executor);
}

void conv_dw(const ConvPlan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
             const IndexView& index, void* dvalues, std::span<std::byte> workspace,
             const Executor& executor) {
  const bsr_conv::Problem& p = plan.problem;
  check_planned("conv_dw", Direction::dw, plan, index, workspace, executor);
  check_matrix("conv_dw", "dy", dy, p.m, p.rows, p.dtype);
  check_matrix("conv_dw", "x", x, p.shape.in_pixels(), p.cols, p.dtype);
  if (p.blocks == 0) return;
  ops::check_values("conv_dw", "dvalues", p, dvalues);
  check_aligned("conv_dw", plan, dvalues, {dy, x}, {});
  bsr_conv::Args args = arguments(plan, index, dy, workspace, executor);
  args.product.b = x.data;
  args.product.b_stride = row_distance(x);
  args.product.out = dvalues;
  launch("conv_dw", plan, args, executor);
}

}  // namespace sparseloom
