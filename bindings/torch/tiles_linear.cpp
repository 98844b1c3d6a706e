// The operators of weights of dense, 2:4 and absent tiles: the products, their plan and the table.
#include "sparseloom/tiles_linear.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear_of.h"
#include "operands.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/tiles_ops.h"

namespace sparseloom::binding {
namespace {

constexpr const char* kOneWeight = "pass table, positions and values of one weight";

/// Throws Error for sizes that no weight has.
void require_sizes(const char* op, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows < 0 || cols < 0 || rows > kMost || cols > kMost)
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(rows, cols), "pass those of the weight");
}

void require_side(const char* op, std::int64_t side) {
  if (side != 64 && side != 128)
    core::fail(op, "a side of 64 or 128", std::to_string(side), "pass the side of the weight's tiles");
}

/// Throws Error unless these are positions of 2:4 tiles.
void require_positions(const char* op, const Tensor& positions, std::int64_t side) {
  require_side(op, side);
  if (positions.scalar_type() != ScalarType::Byte || positions.dim() != 2 || positions.size(0) % side != 0 ||
      positions.size(1) != side / 8 || !positions.is_contiguous())
    core::fail(op, "positions uint8 [2:4 tiles * side, side / 8], contiguous", shape_of(positions),
               kOneWeight);
}

/// The view of a weight in contiguous tensors. Their sizes and devices are checked; on the CPU their content
/// is, and on a GPU the kernel takes entries outside of the values for absent tiles.
TilesView view_of(const char* op, const Tensor& values, const Tensor& table, const Tensor& positions,
                  std::int64_t rows, std::int64_t cols, std::int64_t side, int device) {
  TilesView w;
  w.rows = rows, w.cols = cols, w.side = side;
  require_sizes(op, rows, cols);
  require_device(op, "values", values, device, "x");
  require_device(op, "table", table, device, "x");
  require_device(op, "positions", positions, device, "x");
  require_positions(op, positions, side);
  if (table.scalar_type() != ScalarType::Int || table.dim() != 3 || table.size(0) != w.groups() ||
      table.size(1) != w.units() || table.size(2) != TilesView::kGroup || !table.is_contiguous() ||
      (device >= 0 && !is_aligned(table.const_data_ptr())))
    core::fail(op,
               "table int32 [" + std::to_string(w.groups()) + ", " + std::to_string(w.units()) +
                   ", 4], contiguous and at 16 bytes, for a weight of " + core::shape(rows, cols),
               shape_of(table), "pass what tiles_table made");
  w.halves = positions.size(0) / side;
  const std::int64_t of_dense = values.dim() == 1 ? values.size(0) - w.halves * side * side / 2 : -1;
  if (of_dense < 0 || of_dense % (side * side) != 0)
    core::fail(op, "values [dense tiles * side^2 + 2:4 tiles * side^2 / 2]", shape_of(values), kOneWeight);
  w.dense = of_dense / (side * side);
  w.table = static_cast<const std::int32_t*>(table.const_data_ptr());
  w.positions = static_cast<const std::uint8_t*>(positions.const_data_ptr());
  if (device < 0) tiles_require_valid(op, w);
  return w;
}

Tensor order(const Tensor& positions, std::int64_t side) {
  constexpr const char* op = "tiles_order";
  const int device = device_of(op, "positions", positions);
  require_positions(op, positions, side);
  TilesView w;
  w.side = side, w.halves = positions.size(0) / side;
  w.positions = static_cast<const std::uint8_t*>(positions.const_data_ptr());
  const Tensor metadata = new_bytes(op, tiles_metadata_bytes(w), device);
  tiles_order(w, static_cast<std::byte*>(metadata.mutable_data_ptr()), torch_executor(device));
  return metadata;
}

/// The metadata of the weight, computed if missing.
Tensor metadata_of(const char* op, const std::optional<Tensor>& metadata, const Tensor& positions,
                   const TilesView& w, int device) {
  if (!metadata) return order(positions, w.side);
  require_device(op, "metadata", *metadata, device, "x");
  const std::int64_t bytes = tiles_metadata_bytes(w);
  if (metadata->scalar_type() != ScalarType::Byte || metadata->dim() != 1 || metadata->size(0) != bytes ||
      !is_aligned(metadata->const_data_ptr()) || !metadata->is_contiguous())
    core::fail(op, std::to_string(bytes) + " bytes of metadata", shape_of(*metadata),
               "pass what tiles_order returned for these positions");
  return *metadata;
}

/// The tensor, copied to an address of its own if it starts off 16 bytes: no kernel of a GPU reads others.
Tensor aligned(const Tensor& tensor) {
  return is_aligned(tensor.const_data_ptr()) ? tensor : torch::stable::clone(tensor);
}

Tensor linear(const Tensor& given_x, const Tensor& values, const Tensor& table, const Tensor& positions,
              std::optional<Tensor> metadata, std::int64_t rows, std::int64_t side,
              std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
              std::int64_t row, bool strict) {
  constexpr const char* op = "tiles_linear";
  const int device = device_of(op, "x", given_x);
  const bool on_gpu = device >= 0;
  const Tensor x = on_gpu && !is_aligned(matrix_of(op, "x", given_x).view)
                       ? torch::stable::clone(as_contiguous(given_x))
                       : given_x;
  const Matrix input = matrix_of(op, "x", x);
  const Tensor stored = on_gpu ? aligned(as_contiguous(values)) : as_contiguous(values);
  if (on_gpu && bias) bias = aligned(*bias);
  if (on_gpu && residual) residual = aligned(as_contiguous(*residual));
  TilesView w = view_of(op, stored, table, positions, rows, input.view.cols, side, device);
  const DType dtype = input.view.dtype;
  require_same_dtype(op, dtype, "values", values);
  const std::vector<std::int64_t> sizes = with_features(x, rows);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, dtype, device);
  TilesLinear::Problem problem = TilesLinear::describe(w, Direction::forward, dtype, input.view.rows);
  epilogue.describe(problem), problem.strict = strict;
  const Tensor y = new_like(op, x, sizes);
  if (input.view.rows == 0 || rows == 0) return y;
  MatmulArgs args;
  args.a = input.view.data, args.a_stride = input.view.stride;
  args.values = stored.const_data_ptr();
  epilogue.fill(args);
  args.out = y.mutable_data_ptr(), args.out_stride = rows;
  std::optional<Tensor> ordered;  // lives until the kernel is queued
  if (on_gpu) {
    ordered = metadata_of(op, metadata, positions, w, device);
    w.metadata = static_cast<const std::byte*>(ordered->const_data_ptr());
    problem.aligned = is_aligned(input.view) && is_aligned(args.values) &&
                      is_aligned(epilogue.residual.view) && is_aligned(args.bias) &&
                      is_aligned(writable(y, dtype, input.view.rows, rows));
  }
  run<TilesLinear>(op, problem, args, w, device, row);
  return y;
}

Tensor dx(const Tensor& dy, const Tensor& values, const Tensor& table, const Tensor& positions,
          std::int64_t cols, std::int64_t side, std::int64_t row, bool strict) {
  constexpr const char* op = "tiles_dx";
  require_cpu(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  const Tensor stored = as_contiguous(values);
  const TilesView w = view_of(op, stored, table, positions, grad.view.cols, cols, side, -1);
  require_same_dtype(op, grad.view.dtype, "values", values);
  return dx_of<TilesLinear>(op, dy, grad, stored, w, -1, row, strict);
}

Tensor table_of(const Tensor& kinds, std::int64_t rows, std::int64_t cols, std::int64_t side) {
  constexpr const char* op = "tiles_table";
  require_cpu(op, "kinds", kinds);
  TilesView w;
  w.rows = rows, w.cols = cols, w.side = side;
  require_sizes(op, rows, cols);
  require_side(op, side);
  const std::int64_t down = core::ceil_div(rows, side), across = core::ceil_div(cols, side);
  if (kinds.scalar_type() != ScalarType::Byte || kinds.dim() != 2 || kinds.size(0) != down ||
      kinds.size(1) != across)
    core::fail(op, "kinds uint8 " + core::shape(down, across), shape_of(kinds), "name a kind for each tile");
  const Tensor contiguous = as_contiguous(kinds);
  const auto* const each = static_cast<const std::uint8_t*>(contiguous.const_data_ptr());
  for (std::int64_t tile = 0; tile < down * across; ++tile)
    w.dense += each[tile] == 2, w.halves += each[tile] == 1;
  const Tensor table = new_tensor(op, {w.groups(), w.units(), TilesView::kGroup}, ScalarType::Int, -1);
  Tiles::fill_table(op, w, each, static_cast<std::int32_t*>(table.mutable_data_ptr()));
  return table;
}

std::string plan(const PlanCall& call) {
  call.require_sizes(5, "rows, cols, side, dense tiles, 2:4 tiles");
  TilesView w;
  w.rows = call.sizes[0], w.cols = call.sizes[1], w.side = call.sizes[2];
  w.dense = call.sizes[3], w.halves = call.sizes[4];
  return plan_of<TilesLinear>(call, w);
}

const FamilyPlan kPlan("tiles_linear", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("tiles_table", TORCH_BOX(&sparseloom::binding::table_of));
  m.impl("tiles_order", TORCH_BOX(&sparseloom::binding::order));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("tiles_linear", TORCH_BOX(&sparseloom::binding::linear));
  m.impl("tiles_dx", TORCH_BOX(&sparseloom::binding::dx));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) { m.impl("tiles_linear", TORCH_BOX(&sparseloom::binding::linear)); }
