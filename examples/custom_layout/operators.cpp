// The products as torch operators: torch's threads and dense products are lent, the plan chooses the row.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "forward_row.h"

namespace example {
namespace {

using sparseloom::Direction, sparseloom::DType, sparseloom::Executor, sparseloom::MatmulArgs;

constexpr std::pair<DType, at::ScalarType> kTypes[] = {{DType::f32, at::kFloat},
                                                       {DType::f64, at::kDouble},
                                                       {DType::f16, at::kHalf},
                                                       {DType::bf16, at::kBFloat16}};

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  throw sparseloom::Error("custom_layout", "float32, float64, float16 or bfloat16", c10::toString(type),
                          "convert with .float()");
}

at::Tensor borrow(const sparseloom::ConstMatrixView& m, bool transposed) {
  const at::ScalarType type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& each) {
                                return each.first == m.dtype;
                              })->second;
  const at::Tensor whole =
      at::from_blob(const_cast<void*>(m.data), {m.rows, m.cols}, {m.stride, 1}, at::TensorOptions(type));
  return transposed ? whole.t() : whole;
}

void gemm(void*, const sparseloom::Gemm& product) {
  at::Tensor c = borrow(product.c, false);
  const at::Tensor a = borrow(product.a, product.a_transposed);
  if (product.bias == nullptr) {
    at::mm_out(c, a, borrow(product.b, product.b_transposed));
  } else {
    const at::Tensor bias = borrow({product.bias, product.c.dtype, 1, product.c.cols, product.c.cols}, false);
    at::linear_out(c, a, borrow(product.b, !product.b_transposed), bias.squeeze(0));
  }
}

Executor torch_executor() {
  Executor executor;
  executor.num_threads = at::get_num_threads();
  executor.parallel_for = [](void*, std::int64_t count, sparseloom::RangeBody body) {
    at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) { body(begin, end); });
  };
  executor.gemm = gemm;
  return executor;
}

View view_of(const at::Tensor& crow, const at::Tensor& col, std::int64_t rows, std::int64_t cols,
             std::int64_t side) {
  TORCH_CHECK(crow.scalar_type() == at::kInt && col.scalar_type() == at::kInt && crow.is_contiguous() &&
                  col.is_contiguous(),
              "custom_layout: crow and col are contiguous int32 tensors");
  TORCH_CHECK(side > 0 && crow.numel() == rows / side + 1, "custom_layout: crow is [rows / side + 1]");
  const View view{
      rows, cols, side, col.numel(), crow.const_data_ptr<std::int32_t>(), col.const_data_ptr<std::int32_t>()};
  DiagonalPlusBlocks::validate("custom_layout", view);
  return view;
}

std::shared_ptr<const Linear::Plan> plan_of(const View& view, Direction direction, DType dtype,
                                            std::int64_t m, bool bias, const Executor& executor) {
  static const int row = [] {
    static constexpr sparseloom::Row<Linear> fast{"eight_lanes", sparseloom::Placement::cpu, propose, launch};
    return sparseloom::register_row(fast);
  }();
  TORCH_CHECK(row >= 0, "custom_layout: the row was refused with ", row);
  Linear::Problem problem = Linear::describe(view, direction, dtype, m);
  problem.bias = bias;
  return Linear::plan(problem, executor);
}

/// Plans and runs a product whose operands are in `args`; all tensors are contiguous and of one dtype.
void run(Direction direction, const View& view, const at::Tensor& a, MatmulArgs args) {
  const Executor executor = torch_executor();
  const auto plan =
      plan_of(view, direction, dtype_of(a.scalar_type()), a.size(0), args.bias != nullptr, executor);
  args.a = a.const_data_ptr(), args.a_stride = a.size(1);
  static thread_local sparseloom::Workspace workspace;
  Linear::run(*plan, args, view, workspace.at_least(plan->workspace_bytes), executor);
}

void check(const at::Tensor& a, std::int64_t features, const at::Tensor& values, const View& view) {
  TORCH_CHECK(a.dim() == 2 && a.size(1) == features && a.is_contiguous() && a.is_cpu(),
              "custom_layout: a contiguous [m, ", features, "] on the CPU");
  TORCH_CHECK(values.numel() == DiagonalPlusBlocks::stored(view) && values.is_contiguous() &&
                  values.scalar_type() == a.scalar_type(),
              "custom_layout: ", DiagonalPlusBlocks::stored(view), " values of the dtype of x");
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& values, const std::optional<at::Tensor>& bias,
                   const at::Tensor& crow, const at::Tensor& col, std::int64_t rows, std::int64_t cols,
                   std::int64_t side) {
  const View view = view_of(crow, col, rows, cols, side);
  check(x, cols, values, view);
  TORCH_CHECK(
      !bias || (bias->numel() == rows && bias->is_contiguous() && bias->scalar_type() == x.scalar_type()),
      "custom_layout: bias [", rows, "] of the dtype of x");
  at::Tensor y = at::empty({x.size(0), rows}, x.options());
  MatmulArgs args;
  args.values = values.const_data_ptr(), args.bias = bias ? bias->const_data_ptr() : nullptr;
  args.out = y.mutable_data_ptr(), args.out_stride = rows;
  run(Direction::forward, view, x, args);
  return y;
}

at::Tensor dx(const at::Tensor& dy, const at::Tensor& values, const at::Tensor& crow, const at::Tensor& col,
              std::int64_t rows, std::int64_t cols, std::int64_t side) {
  const View view = view_of(crow, col, rows, cols, side);
  check(dy, rows, values, view);
  at::Tensor out = at::empty({dy.size(0), cols}, dy.options());
  MatmulArgs args;
  args.values = values.const_data_ptr();
  args.out = out.mutable_data_ptr(), args.out_stride = cols;
  run(Direction::dx, view, dy, args);
  return out;
}

at::Tensor dw(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& crow, const at::Tensor& col,
              std::int64_t rows, std::int64_t cols, std::int64_t side) {
  const View view = view_of(crow, col, rows, cols, side);
  at::Tensor out = at::empty({DiagonalPlusBlocks::stored(view)}, x.options());
  check(dy, rows, out, view), check(x, cols, out, view);
  MatmulArgs args;
  args.b = x.const_data_ptr(), args.b_stride = cols;
  args.out = out.mutable_data_ptr();
  run(Direction::dw, view, dy, args);
  return out;
}

/// Kernel, predicted microseconds, bytes of workspace, all candidates with refusals and predictions, the
/// text.
using Explained = std::tuple<std::string, double, std::int64_t, std::vector<std::string>,
                             std::vector<std::string>, std::vector<double>, std::string>;

Explained plan(const at::Tensor& crow, const at::Tensor& col, std::int64_t rows, std::int64_t cols,
               std::int64_t side, std::int64_t m, std::string_view direction, at::ScalarType dtype,
               bool bias) {
  const Direction which = direction == "forward" ? Direction::forward
                          : direction == "dx"    ? Direction::dx
                                                 : Direction::dw;
  const auto made =
      plan_of(view_of(crow, col, rows, cols, side), which, dtype_of(dtype), m, bias, torch_executor());
  Explained told{
      made->kernel_name, made->predicted_us, static_cast<std::int64_t>(made->workspace_bytes), {}, {}, {},
      made->describe()};
  for (const sparseloom::Candidate& each : made->candidates) {
    std::get<3>(told).push_back(each.kernel);
    std::get<4>(told).push_back(each.refusal);
    std::get<5>(told).push_back(each.predicted_us);
  }
  return told;
}

}  // namespace

TORCH_LIBRARY(custom_layout, m) {
  m.def(
      "forward(Tensor x, Tensor values, Tensor? bias, Tensor crow, Tensor col, int rows, int cols, int side) "
      "-> Tensor");
  m.def("dx(Tensor dy, Tensor values, Tensor crow, Tensor col, int rows, int cols, int side) -> Tensor");
  m.def("dw(Tensor dy, Tensor x, Tensor crow, Tensor col, int rows, int cols, int side) -> Tensor");
  m.def(
      "plan(Tensor crow, Tensor col, int rows, int cols, int side, int m, str direction, ScalarType dtype, "
      "bool bias) "
      "-> (str, float, int, str[], str[], float[], str)");
}

TORCH_LIBRARY_IMPL(custom_layout, CPU, m) {
  m.impl("forward", forward);
  m.impl("dx", dx);
  m.impl("dw", dw);
  m.impl("plan", plan);
}

}  // namespace example
