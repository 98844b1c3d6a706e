// The operators of 2:4 weights: pack, unpack, validate and prune, and the products with their plans.
#include "semi24.h"

#include <optional>
#include <string>
#include <tuple>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear_of.h"
#include "operands.h"
#include "ops/dense_copy.h"
#include "ops/row_number.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/semi24_linear.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom::binding {
namespace {

Tensor order(const Tensor& positions, std::int64_t cols, DType dtype) {
  constexpr const char* op = "semi24_order";
  const int device = device_of(op, "positions", positions);
  Semi24View view{positions.dim() == 2 ? positions.size(0) : 0, cols, nullptr};
  if (cols < 0 || positions.scalar_type() != ScalarType::Byte || positions.dim() != 2 ||
      positions.size(1) != view.position_bytes())
    core::fail(op, "uint8 positions [rows, " + std::to_string(cols < 0 ? 0 : view.position_bytes()) + "]",
               shape_of(positions), "pass positions and cols of one weight");
  const Tensor contiguous = as_contiguous(positions);
  view.positions = static_cast<const std::uint8_t*>(contiguous.const_data_ptr());
  const Tensor metadata = new_bytes(op, semi24_metadata_bytes(view.rows, cols, dtype), device);
  semi24_order(view, dtype, static_cast<std::byte*>(metadata.mutable_data_ptr()), torch_executor(device));
  return metadata;
}

// The metadata order for 8-bit values, or for others.
Tensor order_for(const Tensor& positions, std::int64_t cols, bool eight_bit) {
  return order(positions, cols, eight_bit ? DType::i8 : DType::bf16);
}

}  // namespace

Tensor metadata_of(const char* op, const std::optional<Tensor>& metadata, const Semi24Weight& w, int device) {
  if (!metadata) return order(w.positions, w.view.cols, w.dtype);
  require_device(op, "metadata", *metadata, device, "x");
  const std::int64_t bytes = semi24_metadata_bytes(w.view.rows, w.view.cols, w.dtype);
  if (metadata->scalar_type() != ScalarType::Byte || metadata->dim() != 1 || metadata->size(0) != bytes ||
      !is_aligned(metadata->const_data_ptr()))
    core::fail(op, std::to_string(bytes) + " bytes of metadata", shape_of(*metadata),
               "pass what semi24_order returned for these positions and as many bits");
  return as_contiguous(*metadata);
}

Semi24Weight weight_of(const char* op, const Tensor& values, const Tensor& positions, std::int64_t cols,
                       int device, const char* first) {
  require_device(op, "values", values, device, first);
  require_device(op, "positions", positions, device, first);
  const DType dtype = dtype_of(op, "values", values);
  Semi24View view{values.dim() == 2 ? values.size(0) : -1, cols, nullptr};
  const std::string rows = view.rows < 0 ? "rows" : std::to_string(view.rows);
  if (cols < 0 || values.dim() != 2 || values.size(1) != view.row_values())
    core::fail(op,
               "values [rows, 2 ceil(cols / 4)], which for " + std::to_string(cols) + " columns is [" + rows +
                   ", " + std::to_string(view.row_values()) + "]",
               shape_of(values), "pass values and cols of one weight");
  if (positions.scalar_type() != ScalarType::Byte || positions.dim() != 2 || positions.size(0) != view.rows ||
      positions.size(1) != view.position_bytes())
    core::fail(op, "uint8 positions of shape " + core::shape(view.rows, view.position_bytes()),
               "torch.ScalarType " + std::to_string(static_cast<int>(positions.scalar_type())) +
                   " of shape " + shape_of(positions),
               "pass values and positions of one weight");
  Semi24Weight weight{as_contiguous(values), as_contiguous(positions), view, dtype};
  weight.view.positions = static_cast<const std::uint8_t*>(weight.positions.const_data_ptr());
  return weight;
}

void require_positions(const char* op, const Semi24Weight& w, int device) {
  // So many bytes are read in every call, which takes less than asking torch.
  constexpr std::int64_t kShort = 1 << 13;
  if (device >= 0) return;
  std::optional<std::uint64_t> writes;
  if (w.positions.numel() > kShort) writes = writes_of({&w.positions});
  semi24_require_valid(op, w.view, writes ? &*writes : nullptr);
}

namespace {

void require_matrix(const char* op, const Tensor& tensor) {
  if (tensor.dim() != 2)
    core::fail(op, "a matrix [rows, cols]", shape_of(tensor), "pass a weight of two dimensions");
}

std::tuple<Tensor, Tensor> pack(const Tensor& dense) {
  constexpr const char* op = "semi24_pack";
  require_matrix(op, dense);
  const int device = device_of(op, "dense", dense);
  const Matrix matrix = matrix_of(op, "dense", dense);
  const Semi24View shape{matrix.view.rows, matrix.view.cols, nullptr};
  const Tensor values = new_like(op, dense, {shape.rows, shape.row_values()});
  const Tensor positions = new_tensor(op, {shape.rows, shape.position_bytes()}, ScalarType::Byte, device);
  semi24_pack(matrix.view, values.mutable_data_ptr(),
              static_cast<std::uint8_t*>(positions.mutable_data_ptr()), torch_executor(device));
  return {values, positions};
}

Tensor unpack(const Tensor& values, const Tensor& positions, std::int64_t cols) {
  constexpr const char* op = "semi24_unpack";
  const int device = device_of(op, "values", values);
  const Semi24Weight w = weight_of(op, values, positions, cols, device, "values");
  const Tensor dense = new_like(op, values, {w.view.rows, cols});
  semi24_unpack(w.view, w.values.const_data_ptr(), writable(dense, w.dtype, w.view.rows, cols),
                torch_executor(device));
  return dense;
}

void validate(const Tensor& values, const Tensor& positions, std::int64_t cols) {
  constexpr const char* op = "semi24_validate";
  require_cpu(op, "values", values);
  const Semi24Weight w = weight_of(op, values, positions, cols, -1, "values");
  Semi24::validate(op, w.view);
  Semi24::validate_values(op, w.view, w.dtype, w.values.const_data_ptr());
}

Semi24Pruning pruning_named(const char* op, const std::string& method) {
  if (method == "magnitude") return Semi24Pruning::magnitude;
  if (method == "transposable_greedy") return Semi24Pruning::transposable_greedy;
  if (method == "transposable_exact") return Semi24Pruning::transposable_exact;
  core::fail(op, "method 'magnitude', 'transposable_greedy' or 'transposable_exact'", "'" + method + "'",
             "pass one of them");
}

Tensor prune(const Tensor& w, Text method) {
  constexpr const char* op = "semi24_prune";
  const Semi24Pruning pruning = pruning_named(op, taken(method));
  require_matrix(op, w);
  const int device = device_of(op, "w", w);
  const Matrix matrix = matrix_of(op, "w", w);
  const Tensor mask = new_tensor(op, {matrix.view.rows, matrix.view.cols}, ScalarType::Bool, device);
  semi24_prune(matrix.view, pruning, static_cast<bool*>(mask.mutable_data_ptr()), torch_executor(device));
  return mask;
}

Tensor linear(const Tensor& x, const Tensor& values, const Tensor& positions, std::int64_t cols,
              std::optional<Tensor> metadata, std::optional<Tensor> bias, std::int64_t activation,
              std::optional<Tensor> residual, std::int64_t row, bool strict) {
  constexpr const char* op = "semi24_linear";
  const int device = device_of(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  Semi24Weight w = weight_of(op, values, positions, cols, device, "x");
  require_positions(op, w, device);
  require_same_dtype(op, input.view.dtype, "values", values);
  require_inputs(op, x, input, cols);
  const std::int64_t rows = w.view.rows;
  const std::vector<std::int64_t> sizes = with_features(x, rows);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, w.dtype, device);
  Semi24Linear::Problem problem =
      Semi24Linear::describe(w.view, Direction::forward, w.dtype, input.view.rows);
  epilogue.describe(problem), problem.strict = strict;
  const Tensor y = new_like(op, x, sizes);
  if (input.view.rows == 0 || rows == 0) return y;
  MatmulArgs args;
  args.a = input.view.data, args.a_stride = input.view.stride;
  args.values = w.values.const_data_ptr();
  epilogue.fill(args);
  args.out = y.mutable_data_ptr(), args.out_stride = rows;
  std::optional<Tensor> ordered;  // lives until the kernel is queued
  if (device >= 0) {
    ordered = metadata_of(op, metadata, w, device);
    w.view.metadata = static_cast<const std::byte*>(ordered->const_data_ptr());
    problem.aligned = is_aligned(input.view) && is_aligned(w.values.const_data_ptr()) &&
                      is_aligned(epilogue.residual.view) && is_aligned(args.bias) &&
                      is_aligned(writable(y, w.dtype, input.view.rows, rows));
  }
  run<Semi24Linear>(op, problem, args, w.view, device, row);
  return y;
}

Tensor dx(const Tensor& dy, const Tensor& values, const Tensor& positions, std::int64_t cols,
          std::int64_t row, bool strict) {
  constexpr const char* op = "semi24_dx";
  const int device = device_of(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  const Semi24Weight w = weight_of(op, values, positions, cols, device, "dy");
  require_positions(op, w, device);
  require_same_dtype(op, grad.view.dtype, "values", values);
  return dx_of<Semi24Linear>(op, dy, grad, w.values, w.view, device, row, strict);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> compress(const Tensor& w, Text method, bool transposed) {
  constexpr const char* op = "semi24_compress";
  const Semi24Pruning pruning = pruning_named(op, taken(method));
  require_matrix(op, w);
  const int device = device_of(op, "w", w);
  const Matrix matrix = matrix_of(op, "w", w);
  const Semi24View shape{matrix.view.rows, matrix.view.cols, nullptr},
      turned = transposed ? Semi24View{matrix.view.cols, matrix.view.rows, nullptr} : Semi24View{};
  const auto of_bytes = [&](std::int64_t rows, std::int64_t bytes) {
    return new_tensor(op, {rows, bytes}, ScalarType::Byte, device);
  };
  const Tensor values = new_like(op, w, {shape.rows, shape.row_values()}),
               positions = of_bytes(shape.rows, shape.position_bytes()),
               mask = of_bytes(shape.rows, core::ceil_div(shape.cols, std::int64_t{8})),
               turned_values = new_like(op, w, {turned.rows, turned.row_values()}),
               turned_positions = of_bytes(turned.rows, turned.position_bytes());
  const auto bytes = [](const Tensor& tensor) {
    return static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
  };
  semi24_compress(matrix.view, pruning,
                  {values.mutable_data_ptr(), bytes(positions), bytes(mask),
                   transposed ? turned_values.mutable_data_ptr() : nullptr,
                   transposed ? bytes(turned_positions) : nullptr},
                  torch_executor(device));
  return {values, positions, mask, turned_values, turned_positions};
}

std::string plan(const PlanCall& call) {
  call.require_sizes(2, "rows, cols");
  Semi24Linear::Problem problem =
      Semi24Linear::describe({call.sizes[0], call.sizes[1], nullptr}, call.direction, call.dtype, call.m);
  call.describe(problem);
  const Executor executor = call.executor();
  const auto chosen = Semi24Linear::plan(problem, executor, call.row);
  return json_of(*chosen, ops::dense_copy_us(*chosen, executor), chosen->describe());
}

const FamilyPlan kPlan("semi24_linear", plan, plan_semi24_scaled);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("semi24_pack", TORCH_BOX(&pack));
  m.impl("semi24_unpack", TORCH_BOX(&unpack));
  m.impl("semi24_order", TORCH_BOX(&order_for));
  m.impl("semi24_validate", TORCH_BOX(&validate));
  m.impl("semi24_prune", TORCH_BOX(&prune));
  m.impl("semi24_compress", TORCH_BOX(&compress));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("semi24_linear", TORCH_BOX(&sparseloom::binding::linear));
  m.impl("semi24_dx", TORCH_BOX(&sparseloom::binding::dx));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("semi24_linear", TORCH_BOX(&sparseloom::binding::linear));
  m.impl("semi24_dx", TORCH_BOX(&sparseloom::binding::dx));
}
