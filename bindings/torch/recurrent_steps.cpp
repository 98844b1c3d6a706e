// The operators recurrent_steps and recurrent_steps_backward: all steps of a sequence on the CPU in one call.
// A step of 256 units takes some microseconds, and a call from Python for each of its parts ten times as
// long.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear.h"
#include "operands.h"
#include "ops/dense_copy.h"
#include "registration.h"
#include "scratch.h"
#include "sparseloom/ops.h"
#include "sparseloom/recurrent.h"

namespace sparseloom::binding {
namespace {

using Numbers = std::vector<std::int64_t>;

// The memory of a contiguous matrix on the CPU, and of its rows.
struct Rows {
  std::byte* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;

  static Rows of(const char* op, const char* name, const Tensor& tensor, std::int64_t rows, std::int64_t cols,
                 DType dtype) {
    require_cpu(op, name, tensor);
    const bool fits = tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == cols;
    if (!fits || dtype_of(op, name, tensor) != dtype || !tensor.is_contiguous())
      core::fail(op,
                 std::string(name) + " as contiguous " + name_of(dtype) + " [" + std::to_string(rows) + ", " +
                     std::to_string(cols) + "]",
                 std::string(name_of(dtype_of(op, name, tensor))) + " " + shape_of(tensor) +
                     (tensor.is_contiguous() ? "" : ", not contiguous"),
                 "pass the rows of all steps");
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), rows, cols, dtype};
  }
  static Rows of(const char* op, const char* name, const std::optional<Tensor>& tensor, std::int64_t rows,
                 std::int64_t cols, DType dtype) {
    return tensor ? of(op, name, *tensor, rows, cols, dtype) : Rows{};
  }

  // The memory of a row, or null if there is none.
  void* at(std::int64_t row) const {
    return data == nullptr ? nullptr : data + row * cols * static_cast<std::int64_t>(size_of(dtype));
  }
  MatrixView view(std::int64_t row, std::int64_t count) const { return {at(row), dtype, count, cols, cols}; }
};

// One step: its rows in the data, and the first row of the states before it in a buffer of all states. The
// initial states lie in front of the others, or behind them if the steps run in reverse.
struct Place {
  std::int64_t begin, size, before;
};

std::vector<Place> places_of(const char* op, const Numbers& sizes, std::int64_t rows, std::int64_t batch,
                             bool reverse) {
  std::vector<Place> places;
  std::int64_t begin = 0, known = batch;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > known || (reverse && size != batch))
      core::fail(op, reverse ? "steps of the whole batch, in reverse" : "sizes that never grow",
                 std::to_string(size) + " sequences after " + std::to_string(known),
                 "sort the sequences by length");
    places.push_back({begin, size, 0});
    begin += size, known = size;
  }
  if (begin != rows)
    core::fail(op, "sizes that sum to " + std::to_string(rows) + " rows", std::to_string(begin),
               "pass the sequences of each step");
  if (reverse) std::reverse(places.begin(), places.end());
  std::int64_t before = reverse ? rows : 0;
  for (Place& place : places) {
    place.before = before;
    before = (reverse ? 0 : batch) + place.begin;
  }
  return places;
}

// The recurrent weight, for products with the rows of a step.
class Weight {
 public:
  Weight(const char* op, Direction direction, const Tensor& values, const Tensor& packed, std::int64_t rows,
         std::int64_t cols, DType dtype, bool strict, std::int64_t digest)
      : op_(op),
        direction_(direction),
        values_(as_contiguous(values)),
        dtype_(dtype),
        strict_(strict),
        digest_(digest) {
    require_cpu(op, "values", values);
    require_same_dtype(op, dtype, "values", values_);
    const bool columns = direction == Direction::dx;
    slots_ = index_of(op, packed, values_.size(0), rows, cols, block_of_values(op, values_), -1, "x",
                      {.columns = columns, .digest = digest});
    data_ = values_of(op, values_, slots_);
    index_ = stored_part(op, slots_, digest, -1);
  }

  // Decides whether W is made dense once, for `steps` products with n rows: if that is predicted to take less
  // time, its copy counted.
  void settle(std::int64_t n, std::size_t steps, bool bias, bool residual) {
    const Executor executor = torch_executor(-1);
    const Plan& plan = plan_of(n, bias, residual, executor);
    const std::optional<double> copy_us = ops::dense_copy_us(plan, executor);
    if (strict_ || !copy_us || executor.gemm == nullptr) return;
    for (const Candidate& each : plan.candidates)
      if (each.kernel == "dense" && each.refusal.empty() &&
          each.predicted_us + static_cast<double>(steps - 1) * *copy_us <
              static_cast<double>(steps) * plan.predicted_us) {
        dense_ = new_cpu({index_.rows, index_.cols}, scalar_type_of(dtype_));
        sparseloom::unpack(index_, data_, writable(*dense_, dtype_, index_.rows, index_.cols));
      }
  }

  // out = x W^T + bias + residual
  void forward(const ConstMatrixView& x, const void* bias, const ConstMatrixView& residual,
               const MatrixView& out) {
    const Executor executor = torch_executor(-1);
    if (dense_) {
      multiply(x, bias, out, executor);
      if (residual.data != nullptr) add(residual, out);
      return;
    }
    const Plan& plan = plan_of(x.rows, bias != nullptr, residual.data != nullptr, executor);
    const Scratch scratch(op_, plan.workspace_bytes, -1);
    sparseloom::linear(plan, x, index_, data_, Addends{bias, residual}, out, scratch.span(), executor);
  }

  // out = dy W
  void dx(const ConstMatrixView& dy, const MatrixView& out) {
    const Executor executor = torch_executor(-1);
    if (dense_) return multiply(dy, nullptr, out, executor);
    const Plan& plan = plan_of(dy.rows, false, false, executor);
    const Scratch scratch(op_, plan.workspace_bytes, -1);
    sparseloom::linear_dx(plan, dy, index_, column_index(slots_), data_, out, scratch.span(), executor);
  }

 private:
  void multiply(const ConstMatrixView& a, const void* bias, const MatrixView& out, const Executor& executor) {
    Gemm product;
    product.a = a, product.b = writable(*dense_, dtype_, index_.rows, index_.cols), product.c = out;
    product.b_transposed = direction_ == Direction::forward, product.bias = bias;
    executor.gemm(executor.context, product);
  }

  // out += addend, by torch's operators.
  static void add(const ConstMatrixView& addend, const MatrixView& out) {
    const auto borrow = [](const ConstMatrixView& m) {
      return torch::stable::from_blob(const_cast<void*>(m.data), Numbers{m.rows, m.cols},
                                      Numbers{m.stride, 1}, torch_device(-1), scalar_type_of(m.dtype));
    };
    Tensor sum = borrow(out);
    torch::stable::copy_(sum, torch::stable::subtract(sum, borrow(addend), -1.0));
  }

  const Plan& plan_of(std::int64_t n, bool bias, bool residual, const Executor& executor) {
    std::shared_ptr<const Plan>& plan = plans_[n];
    if (plan != nullptr) return *plan;
    Problem problem = problem_of(direction_, dtype_, n, index_, digest_, strict_, false);
    problem.bias = bias, problem.residual = residual;
    problem.aligned = problem.aligned && is_aligned(data_);
    return *(plan = make_plan(problem, index_, executor));
  }

  const char* op_;
  Direction direction_;
  Tensor values_;
  DType dtype_;
  bool strict_;
  std::int64_t digest_;
  IndexView slots_, index_;
  const void* data_;
  std::map<std::int64_t, std::shared_ptr<const Plan>> plans_;  // by the rows of a step
  std::optional<Tensor> dense_;
};

DType state_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void require_matrix(const char* op, const char* name, const Tensor& tensor, std::int64_t parts) {
  if (tensor.dim() != 2 || tensor.size(1) % parts != 0)
    core::fail(op, std::string(name) + " [rows, " + std::to_string(parts) + " x units]", shape_of(tensor),
               "pass the rows of all steps");
}

void recurrent_steps(bool lstm, const Tensor& gx, const Tensor& h, const std::optional<Tensor>& c,
                     const std::optional<Tensor>& gates, const Tensor& values, const Tensor& packed,
                     const std::optional<Tensor>& given_bias, Numbers sizes, bool reverse, bool strict,
                     std::int64_t digest, std::int64_t side) {
  constexpr const char* op = "recurrent_steps";
  const std::int64_t parts = lstm ? 4 : 3;
  require_matrix(op, "gx", gx, parts), require_matrix(op, "h", h, 1);
  const DType dtype = dtype_of(op, "gx", gx), state = state_of(dtype);
  const std::int64_t rows = gx.size(0), hidden = gx.size(1) / parts, batch = h.size(0) - rows;
  const Rows x = Rows::of(op, "gx", gx, rows, parts * hidden, dtype),
             states = Rows::of(op, "h", h, rows + batch, hidden, dtype),
             kept = Rows::of(op, "gates", gates, rows, 4 * hidden, dtype);
  if (lstm != c.has_value())
    core::fail(op, "c of an LSTM alone", lstm ? "none" : "one", "pass c for an LSTM and none for a GRU");
  const bool every_c = c && c->dim() == 2 && c->size(0) != batch;  // c of all steps, for the gradient
  const Rows cells = Rows::of(op, "c", c, every_c ? rows + batch : batch, hidden, state);
  const std::vector<Place> places = places_of(op, sizes, rows, batch, reverse);
  const std::optional<Tensor> bias = bias_of(op, given_bias, parts * hidden, dtype, -1);
  const void* added = bias ? bias->const_data_ptr() : nullptr;
  Weight weight(op, Direction::forward, values, packed, parts * hidden, hidden, dtype, strict, digest);
  if (rows == 0 || hidden == 0) return;
  weight.settle(batch, places.size(), added != nullptr, lstm);
  const Tensor product = new_cpu({batch, parts * hidden}, scalar_type_of(dtype));
  const Rows z = Rows::of(op, "the product", product, batch, parts * hidden, dtype);
  const std::int64_t data = reverse ? 0 : batch;  // the row of `states` of the first row of the data
  for (const Place& place : places) {
    if (place.size == 0) break;
    const MatrixView out = z.view(0, place.size);
    weight.forward(states.view(place.before, place.size), added,
                   lstm ? x.view(place.begin, place.size) : MatrixView{}, out);
    const Executor executor = torch_executor(-1);
    if (lstm) {
      LstmCell cell;
      cell.dtype = dtype, cell.n = place.size, cell.hidden = hidden, cell.side = side;
      cell.z = out.data, cell.gates = kept.at(place.begin);
      cell.c_before = cells.at(every_c ? place.before : 0);
      cell.c = cells.at(every_c ? data + place.begin : 0), cell.h = states.at(data + place.begin);
      lstm_cell(cell, executor);
    } else {
      GruCell cell;
      cell.dtype = dtype, cell.n = place.size, cell.hidden = hidden;
      cell.x = x.at(place.begin), cell.g = out.data, cell.h_before = states.at(place.before);
      cell.gates = kept.at(place.begin), cell.h = states.at(data + place.begin);
      gru_cell(cell, executor);
    }
  }
}

void recurrent_steps_backward(const std::optional<Tensor>& dy, const Tensor& dh,
                              const std::optional<Tensor>& dc, const Tensor& h,
                              const std::optional<Tensor>& c, const Tensor& gates, const Tensor& dgx,
                              const std::optional<Tensor>& dg, const std::optional<Tensor>& more,
                              const Tensor& values, const Tensor& packed, Numbers sizes, bool reverse,
                              bool strict, std::int64_t digest, std::int64_t side) {
  constexpr const char* op = "recurrent_steps_backward";
  const bool lstm = c.has_value();
  const std::int64_t parts = lstm ? 4 : 3;
  if (lstm != dc.has_value() || lstm == dg.has_value() || lstm == more.has_value())
    core::fail(op, "c and dc of an LSTM, or dg and more of a GRU", "another set",
               "pass the tensors of one of them");
  require_matrix(op, "gates", gates, 4), require_matrix(op, "dh", dh, 1);
  const DType dtype = dtype_of(op, "gates", gates), state = state_of(dtype);
  const std::int64_t rows = gates.size(0), hidden = gates.size(1) / 4, batch = dh.size(0);
  const Rows kept = Rows::of(op, "gates", gates, rows, 4 * hidden, dtype),
             states = Rows::of(op, "h", h, rows + batch, hidden, dtype),
             cells = Rows::of(op, "c", c, rows + batch, hidden, state),
             given = Rows::of(op, "dy", dy, rows, hidden, dtype),
             from_h = Rows::of(op, "dh", dh, batch, hidden, dtype),
             from_c = Rows::of(op, "dc", dc, batch, hidden, state),
             inputs = Rows::of(op, "dgx", dgx, rows, parts * hidden, dtype),
             products = Rows::of(op, "dg", dg, rows, parts * hidden, dtype);
  std::vector<Place> places = places_of(op, sizes, rows, batch, reverse);
  std::reverse(places.begin(), places.end());
  Weight weight(op, Direction::dx, values, packed, parts * hidden, hidden, dtype, strict, digest);
  if (rows == 0 || hidden == 0) return;
  weight.settle(batch, places.size(), false, false);
  const Rows by_product = lstm ? from_h : Rows::of(op, "more", more, batch, hidden, dtype);
  const std::int64_t data = reverse ? 0 : batch;
  for (const Place& place : places) {
    if (place.size == 0) continue;
    const Executor executor = torch_executor(-1);
    if (lstm) {
      LstmCellGradient cell;
      cell.dtype = dtype, cell.n = place.size, cell.hidden = hidden, cell.side = side;
      cell.gates = kept.at(place.begin), cell.c_before = cells.at(place.before);
      cell.c = cells.at(data + place.begin);
      cell.dy = given.at(place.begin), cell.dh = from_h.at(0);
      cell.dc = from_c.at(0), cell.dz = inputs.at(place.begin);
      lstm_cell_gradient(cell, executor);
      weight.dx(inputs.view(place.begin, place.size), by_product.view(0, place.size));
    } else {
      GruCellGradient cell;
      cell.dtype = dtype, cell.n = place.size, cell.hidden = hidden;
      cell.gates = kept.at(place.begin), cell.h_before = states.at(place.before);
      cell.dy = given.at(place.begin), cell.dh = from_h.at(0), cell.more = by_product.at(0);
      cell.dx = inputs.at(place.begin), cell.dg = products.at(place.begin), cell.dh_before = from_h.at(0);
      gru_cell_gradient(cell, executor);
      weight.dx(products.view(place.begin, place.size), by_product.view(0, place.size));
    }
  }
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("recurrent_steps", TORCH_BOX(&sparseloom::binding::recurrent_steps));
  m.impl("recurrent_steps_backward", TORCH_BOX(&sparseloom::binding::recurrent_steps_backward));
}
