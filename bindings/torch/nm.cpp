// The operators of n:m and n:m:g weights: choice, pack, unpack, validate, and the product of n:m:g.
#include <algorithm>
#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear_of.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg_linear.h"

namespace sparseloom::binding {
namespace {

/// A matrix [rows, cols] on the CPU.
Matrix matrix_on_cpu(const char* op, const char* name, const Tensor& dense) {
  require_cpu(op, name, dense);
  if (dense.dim() != 2) core::fail(op, "a matrix [rows, cols]", shape_of(dense), "pass a weight");
  return matrix_of(op, name, dense);
}

/// An index tensor of this type and shape, contiguous, on the CPU.
Tensor index_on_cpu(const char* op, const char* name, const Tensor& tensor, ScalarType type,
                    const std::vector<std::int64_t>& sizes) {
  require_cpu(op, name, tensor);
  if (tensor.scalar_type() != type || sizes_of(tensor) != sizes) {
    std::string expected;
    for (std::int64_t size : sizes) expected += (expected.empty() ? "" : ", ") + std::to_string(size);
    core::fail(op, std::string(name) + (type == ScalarType::Byte ? " uint8 [" : " int16 [") + expected + "]",
               "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())) + " of shape " +
                   shape_of(tensor),
               "pass the index of this weight");
  }
  return as_contiguous(tensor);
}

struct NmIndex {
  Tensor positions;
  NmView view;
};

/// The index of a weight, whose sizes are checked.
NmIndex nm_of(const char* op, const Tensor& positions, std::int64_t cols, std::int64_t m) {
  if (positions.dim() != 3)
    core::fail(op, "positions [rows, groups, n]", shape_of(positions), "pass the index of a weight");
  NmView view{positions.size(0), cols, positions.size(2), m, nullptr};
  Nm::validate(op, {0, cols, view.n, m, nullptr});  // the sizes give the number of groups
  Tensor index =
      index_on_cpu(op, "positions", positions, ScalarType::Byte, {view.rows, view.groups(), view.n});
  view.positions = static_cast<const std::uint8_t*>(index.const_data_ptr());
  return {std::move(index), view};
}

/// Like nm_of, with valid positions.
NmIndex valid_nm(const char* op, const Tensor& positions, std::int64_t cols, std::int64_t m) {
  NmIndex index = nm_of(op, positions, cols, m);
  nm_require_valid(op, index.view);
  return index;
}

/// Values of a weight, whose sizes are checked.
Tensor values_of_weight(const char* op, const Tensor& values, const std::vector<std::int64_t>& sizes) {
  require_cpu(op, "values", values);
  if (sizes_of(values) != sizes)
    core::fail(op, "values in the shape of the index", shape_of(values),
               "pass values and index of one weight");
  return as_contiguous(values);
}

Tensor positions_of(const Tensor& mask, std::int64_t n, std::int64_t m) {
  constexpr const char* op = "nm_positions";
  require_cpu(op, "mask", mask);
  if (mask.scalar_type() != ScalarType::Bool || mask.dim() != 2)
    core::fail(op, "a bool mask [rows, cols]", shape_of(mask), "pass what a sparsifier chose");
  const Tensor contiguous = as_contiguous(mask);
  const NmView shape{mask.size(0), mask.size(1), n, m, nullptr};
  Nm::validate(op, {0, mask.size(1), n, m, nullptr});
  const Tensor positions = new_cpu({shape.rows, shape.groups(), n}, ScalarType::Byte);
  nm_positions(static_cast<const bool*>(contiguous.const_data_ptr()), shape,
               static_cast<std::uint8_t*>(positions.mutable_data_ptr()), torch_executor());
  return positions;
}

Tensor pack_nm(const Tensor& dense, const Tensor& positions, std::int64_t m) {
  constexpr const char* op = "nm_pack";
  const Matrix matrix = matrix_on_cpu(op, "dense", dense);
  const NmIndex index = valid_nm(op, positions, matrix.view.cols, m);
  const Tensor values = new_like(op, dense, {index.view.rows, index.view.groups(), index.view.n});
  nm_pack(matrix.view, index.view, values.mutable_data_ptr(), torch_executor());
  return values;
}

Tensor unpack_nm(const Tensor& values, const Tensor& positions, std::int64_t cols, std::int64_t m) {
  constexpr const char* op = "nm_unpack";
  const NmIndex index = valid_nm(op, positions, cols, m);
  const Tensor stored = values_of_weight(op, values, {index.view.rows, index.view.groups(), index.view.n});
  const Tensor dense = new_like(op, values, {index.view.rows, cols});
  nm_unpack(index.view, stored.const_data_ptr(),
            writable(dense, dtype_of(op, "values", values), index.view.rows, cols), torch_executor());
  return dense;
}

void validate_nm(const Tensor& positions, std::int64_t cols, std::int64_t m) {
  Nm::validate("nm_validate", nm_of("nm_validate", positions, cols, m).view);
}

struct NmgIndex {
  Tensor order;
  NmgView view;
  std::vector<std::int64_t> values() const {
    return {view.chunks(), view.strips(), view.chunk_rows(), view.n};
  }
};

/// The index of a weight, whose sizes are checked.
NmgIndex nmg_of(const char* op, const Tensor& order, std::int64_t rows, std::int64_t cols, std::int64_t n,
                std::int64_t m, std::int64_t g) {
  NmgView view = nmg_view(op, rows, cols, n, m, g);
  Tensor index =
      index_on_cpu(op, "order", order, ScalarType::Short, {view.chunks(), view.strips(), view.chunk_rows()});
  view.order = static_cast<const std::int16_t*>(index.const_data_ptr());
  return {std::move(index), view};
}

/// The same, of which the order is valid too.
NmgIndex valid_nmg(const char* op, const Tensor& order, std::int64_t rows, std::int64_t cols, std::int64_t n,
                   std::int64_t m, std::int64_t g) {
  NmgIndex index = nmg_of(op, order, rows, cols, n, m, g);
  nmg_require_valid(op, index.view);
  return index;
}

/// The positions of every pattern, in the order of the patterns: uint8 [C(m, n), n].
Tensor places_of(std::int64_t n, std::int64_t m) {
  const NmgView shape = nmg_view("nmg_places", 0, 0, n, m, 1);
  const Tensor places = new_cpu({shape.patterns, n}, ScalarType::Byte);
  std::copy_n(shape.places, shape.patterns * n, static_cast<std::uint8_t*>(places.mutable_data_ptr()));
  return places;
}

Tensor order_of(const Tensor& dense, std::int64_t n, std::int64_t m, std::int64_t g) {
  constexpr const char* op = "nmg_order";
  const Matrix matrix = matrix_on_cpu(op, "dense", dense);
  const NmgView shape = nmg_view(op, matrix.view.rows, matrix.view.cols, n, m, g);
  const Tensor order = new_cpu({shape.chunks(), shape.strips(), shape.chunk_rows()}, ScalarType::Short);
  nmg_order(matrix.view, shape, static_cast<std::int16_t*>(order.mutable_data_ptr()), torch_executor());
  return order;
}

Tensor pack_nmg(const Tensor& dense, const Tensor& order, std::int64_t n, std::int64_t m, std::int64_t g) {
  constexpr const char* op = "nmg_pack";
  const Matrix matrix = matrix_on_cpu(op, "dense", dense);
  const NmgIndex index = valid_nmg(op, order, matrix.view.rows, matrix.view.cols, n, m, g);
  const Tensor values = new_like(op, dense, index.values());
  nmg_pack(matrix.view, index.view, values.mutable_data_ptr(), torch_executor());
  return values;
}

Tensor unpack_nmg(const Tensor& values, const Tensor& order, std::int64_t rows, std::int64_t cols,
                  std::int64_t n, std::int64_t m, std::int64_t g) {
  constexpr const char* op = "nmg_unpack";
  const NmgIndex index = valid_nmg(op, order, rows, cols, n, m, g);
  const Tensor stored = values_of_weight(op, values, index.values());
  const Tensor dense = new_like(op, values, {rows, cols});
  nmg_unpack(index.view, stored.const_data_ptr(), writable(dense, dtype_of(op, "values", values), rows, cols),
             torch_executor());
  return dense;
}

void validate_nmg(const Tensor& order, std::int64_t rows, std::int64_t cols, std::int64_t n, std::int64_t m,
                  std::int64_t g) {
  Nmg::validate("nmg_validate", nmg_of("nmg_validate", order, rows, cols, n, m, g).view);
}

Tensor linear_nmg(const Tensor& x, const Tensor& values, const Tensor& order, std::int64_t rows,
                  std::int64_t cols, std::int64_t n, std::int64_t m, std::int64_t g,
                  std::optional<Tensor> bias, std::int64_t activation, std::optional<Tensor> residual,
                  std::int64_t row, bool strict) {
  constexpr const char* op = "nmg_linear";
  require_cpu(op, "x", x);
  const Matrix input = matrix_of(op, "x", x);
  const NmgIndex index = valid_nmg(op, order, rows, cols, n, m, g);
  const Tensor stored = values_of_weight(op, values, index.values());
  require_same_dtype(op, input.view.dtype, "values", values);
  require_inputs(op, x, input, cols);
  return linear_of<NmgLinear>(op, x, input, stored, index.view, bias, activation, residual, -1, row, strict);
}

Tensor dx_nmg(const Tensor& dy, const Tensor& values, const Tensor& order, std::int64_t rows,
              std::int64_t cols, std::int64_t n, std::int64_t m, std::int64_t g, std::int64_t row,
              bool strict) {
  constexpr const char* op = "nmg_dx";
  require_cpu(op, "dy", dy);
  const Matrix grad = matrix_of(op, "dy", dy);
  const NmgIndex index = valid_nmg(op, order, rows, cols, n, m, g);
  const Tensor stored = values_of_weight(op, values, index.values());
  require_same_dtype(op, grad.view.dtype, "values", values);
  return dx_of<NmgLinear>(op, dy, grad, stored, index.view, -1, row, strict);
}

Tensor dw_nmg(const Tensor& dy, const Tensor& x, const Tensor& order, std::int64_t rows, std::int64_t cols,
              std::int64_t n, std::int64_t m, std::int64_t g, std::int64_t row, bool strict) {
  constexpr const char* op = "nmg_dw";
  require_cpu(op, "dy", dy), require_cpu(op, "x", x);
  const Matrix grad = matrix_of(op, "dy", dy), input = matrix_of(op, "x", x);
  const NmgIndex index = valid_nmg(op, order, rows, cols, n, m, g);
  return dw_of<NmgLinear>(op, dy, grad, x, input, index.values(), index.view, row, strict);
}

std::string plan(const PlanCall& call) {
  call.require_sizes(5, "rows, cols, n, m, g");
  const auto& s = call.sizes;
  return plan_of<NmgLinear>(call, nmg_view("plan", s[0], s[1], s[2], s[3], s[4]));
}

const FamilyPlan kPlan("nmg_linear", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("nm_positions", TORCH_BOX(&positions_of));
  m.impl("nm_pack", TORCH_BOX(&pack_nm));
  m.impl("nm_unpack", TORCH_BOX(&unpack_nm));
  m.impl("nm_validate", TORCH_BOX(&validate_nm));
  m.impl("nmg_places", TORCH_BOX(&places_of));
  m.impl("nmg_order", TORCH_BOX(&order_of));
  m.impl("nmg_pack", TORCH_BOX(&pack_nmg));
  m.impl("nmg_unpack", TORCH_BOX(&unpack_nmg));
  m.impl("nmg_validate", TORCH_BOX(&validate_nmg));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("nmg_linear", TORCH_BOX(&linear_nmg));
  m.impl("nmg_dx", TORCH_BOX(&dx_nmg));
  m.impl("nmg_dw", TORCH_BOX(&dw_nmg));
}
