// The operators lstm_cell_pointwise and gru_cell_pointwise, and their gradients.
#include "sparseloom/recurrent.h"

#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"

namespace sparseloom::binding {
namespace {

// Checks the operands of one cell against its first, and returns their memory.
class Operands {
 public:
  Operands(const char* op, const char* first, const Tensor& tensor, std::int64_t gates)
      : op_(op), first_(first), device_(device_of(op, first, tensor)), dtype_(dtype_of(op, first, tensor)) {
    const bool fits = tensor.dim() == 2 && tensor.size(1) % gates == 0;
    if (!fits)
      core::fail(op, std::string(first) + " [sequences, " + std::to_string(gates) + " x units]",
                 shape_of(tensor), "flatten the step to two dimensions");
    n_ = tensor.size(0), hidden_ = tensor.size(1) / gates;
  }

  int device() const { return device_; }
  DType dtype() const { return dtype_; }
  std::int64_t n() const { return n_; }
  std::int64_t hidden() const { return hidden_; }
  DType state() const { return dtype_ == DType::f64 ? DType::f64 : DType::f32; }

  // The memory of a matrix [n, gates x hidden].
  void* of(const char* name, const Tensor& tensor, std::int64_t gates, DType dtype) const {
    require_device(op_, name, tensor, device_, first_);
    const bool fits = tensor.dim() == 2 && tensor.size(0) == n_ && tensor.size(1) == gates * hidden_;
    if (!fits || dtype_of(op_, name, tensor) != dtype || !tensor.is_contiguous())
      core::fail(op_,
                 std::string(name) + " as contiguous " + name_of(dtype) + " [" + std::to_string(n_) + ", " +
                     std::to_string(gates * hidden_) + "]",
                 std::string(name_of(dtype_of(op_, name, tensor))) + " " + shape_of(tensor) +
                     (tensor.is_contiguous() ? "" : ", not contiguous"),
                 "pass the rows of one step");
    return tensor.mutable_data_ptr();
  }
  void* of(const char* name, const Tensor& tensor, std::int64_t gates = 1) const {
    return of(name, tensor, gates, dtype_);
  }
  void* of(const char* name, const std::optional<Tensor>& tensor, std::int64_t gates = 1) const {
    return tensor ? of(name, *tensor, gates, dtype_) : nullptr;
  }

 private:
  const char *op_, *first_;
  int device_;
  DType dtype_;
  std::int64_t n_ = 0, hidden_ = 0;
};

template <class Cell>
Cell sized(const Operands& operands) {
  Cell cell;
  cell.dtype = operands.dtype(), cell.n = operands.n(), cell.hidden = operands.hidden();
  return cell;
}

void lstm_cell_pointwise(const Tensor& z, const Tensor& c_before, const std::optional<Tensor>& gates,
                         const Tensor& c, const Tensor& h, std::int64_t side) {
  const Operands operands("lstm_cell_pointwise", "z", z, 4);
  auto cell = sized<LstmCell>(operands);
  cell.side = side;
  cell.z = operands.of("z", z, 4), cell.gates = operands.of("gates", gates, 4);
  cell.c_before = operands.of("c_before", c_before, 1, operands.state());
  cell.c = operands.of("c", c, 1, operands.state()), cell.h = operands.of("h", h);
  lstm_cell(cell, torch_executor(operands.device()));
}

void lstm_cell_pointwise_backward(const Tensor& gates, const Tensor& c_before, const Tensor& c,
                                  const std::optional<Tensor>& dy, const std::optional<Tensor>& dh,
                                  const Tensor& dc, const Tensor& dz, std::int64_t side) {
  const Operands operands("lstm_cell_pointwise_backward", "gates", gates, 4);
  auto cell = sized<LstmCellGradient>(operands);
  cell.side = side;
  cell.gates = operands.of("gates", gates, 4), cell.dz = operands.of("dz", dz, 4);
  cell.c_before = operands.of("c_before", c_before, 1, operands.state());
  cell.c = operands.of("c", c, 1, operands.state()), cell.dc = operands.of("dc", dc, 1, operands.state());
  cell.dy = operands.of("dy", dy), cell.dh = operands.of("dh", dh);
  lstm_cell_gradient(cell, torch_executor(operands.device()));
}

void gru_cell_pointwise(const Tensor& x, const Tensor& g, const Tensor& h_before,
                        const std::optional<Tensor>& gates, const Tensor& h) {
  const Operands operands("gru_cell_pointwise", "x", x, 3);
  auto cell = sized<GruCell>(operands);
  cell.x = operands.of("x", x, 3), cell.g = operands.of("g", g, 3);
  cell.h_before = operands.of("h_before", h_before), cell.gates = operands.of("gates", gates, 4);
  cell.h = operands.of("h", h);
  gru_cell(cell, torch_executor(operands.device()));
}

void gru_cell_pointwise_backward(const Tensor& gates, const Tensor& h_before, const std::optional<Tensor>& dy,
                                 const std::optional<Tensor>& dh, const std::optional<Tensor>& more,
                                 const Tensor& dx, const Tensor& dg, const Tensor& dh_before) {
  const Operands operands("gru_cell_pointwise_backward", "gates", gates, 4);
  auto cell = sized<GruCellGradient>(operands);
  cell.gates = operands.of("gates", gates, 4), cell.h_before = operands.of("h_before", h_before);
  cell.dy = operands.of("dy", dy), cell.dh = operands.of("dh", dh), cell.more = operands.of("more", more);
  cell.dx = operands.of("dx", dx, 3), cell.dg = operands.of("dg", dg, 3);
  cell.dh_before = operands.of("dh_before", dh_before);
  gru_cell_gradient(cell, torch_executor(operands.device()));
}

}  // namespace
}  // namespace sparseloom::binding

#define SPARSELOOM_RECURRENT(m)                                                                          \
  m.impl("lstm_cell_pointwise", TORCH_BOX(&sparseloom::binding::lstm_cell_pointwise));                   \
  m.impl("lstm_cell_pointwise_backward", TORCH_BOX(&sparseloom::binding::lstm_cell_pointwise_backward)); \
  m.impl("gru_cell_pointwise", TORCH_BOX(&sparseloom::binding::gru_cell_pointwise));                     \
  m.impl("gru_cell_pointwise_backward", TORCH_BOX(&sparseloom::binding::gru_cell_pointwise_backward));

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m){SPARSELOOM_RECURRENT(m)}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  SPARSELOOM_RECURRENT(m)
}
