// The operators unit_norm and unit_norm_backward.
#include "sparseloom/unit_norm.h"

#include <optional>
#include <string>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"

namespace sparseloom::binding {
namespace {

// Checks the operands of one norm against z and weight, and returns their memory.
class Operands {
 public:
  Operands(const char* op, const Tensor& z, const Tensor& weight)
      : op_(op), device_(device_of(op, "z", z)), dtype_(dtype_of(op, "z", z)) {
    if (weight.dim() != 2 || z.dim() != 2 || z.size(1) != weight.numel())
      core::fail(op, "z [rows, groups x units] and weight [groups, units]",
                 shape_of(z) + " and " + shape_of(weight), "flatten the groups of a row");
    n_ = z.size(0), groups_ = weight.size(0), hidden_ = weight.size(1);
  }
  int device() const { return device_; }
  DType state() const { return dtype_ == DType::f64 ? DType::f64 : DType::f32; }
  std::int64_t n() const { return n_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t hidden() const { return hidden_; }
  std::int64_t row() const { return groups_ * hidden_; }

  // The memory of `count` numbers, contiguous.
  void* of(const char* name, const Tensor& tensor, std::int64_t count, DType dtype) const {
    require_device(op_, name, tensor, device_, "z");
    const DType got = dtype_of(op_, name, tensor);
    if (tensor.numel() != count || got != dtype || !tensor.is_contiguous())
      core::fail(op_,
                 std::string(name) + " as contiguous " + name_of(dtype) + " of " + std::to_string(count) +
                     " numbers",
                 std::string(name_of(got)) + " " + shape_of(tensor) +
                     (tensor.is_contiguous() ? "" : ", not contiguous"),
                 "pass what belongs to the rows of one step");
    return tensor.mutable_data_ptr();
  }
  void* of(const char* name, const Tensor& tensor, std::int64_t count) const {
    return of(name, tensor, count, dtype_);
  }

  UnitNorm norm(const Tensor& z, const Tensor& weight, const Tensor& bias, const std::optional<Tensor>& extra,
                std::int64_t stride, std::int64_t group, bool multiply, double scale, bool relu,
                std::int64_t side) const {
    UnitNorm norm;
    norm.dtype = dtype_, norm.n = n_, norm.groups = groups_, norm.hidden = hidden_;
    norm.z = of("z", z, n_ * row()), norm.weight = of("weight", weight, row());
    norm.bias = of("bias", bias, row());
    norm.stride = stride, norm.group = group, norm.multiply = multiply, norm.scale = scale, norm.relu = relu;
    norm.side = side;
    if (extra) norm.extra = of("extra", *extra, extras(stride));
    return norm;
  }
  std::int64_t extras(std::int64_t stride) const {
    return n_ * core::ceil_div(hidden_, stride < 1 ? 1 : stride);
  }

 private:
  const char* op_;
  int device_;
  DType dtype_;
  std::int64_t n_ = 0, groups_ = 0, hidden_ = 0;
};

void unit_norm(const Tensor& z, const Tensor& weight, const Tensor& bias, const std::optional<Tensor>& extra,
               std::int64_t stride, std::int64_t group, bool multiply, double scale, bool relu,
               std::int64_t side, double eps, const Tensor& y, const std::optional<Tensor>& statistics) {
  const Operands operands("unit_norm", z, weight);
  UnitNorm norm = operands.norm(z, weight, bias, extra, stride, group, multiply, scale, relu, side);
  norm.eps = eps, norm.y = operands.of("y", y, operands.n() * operands.row());
  if (statistics)
    norm.statistics =
        operands.of("statistics", *statistics, operands.n() * operands.groups() * 2, operands.state());
  sparseloom::unit_norm(norm, torch_executor(operands.device()));
}

void unit_norm_backward(const Tensor& dy, const Tensor& z, const Tensor& weight, const Tensor& bias,
                        const std::optional<Tensor>& extra, std::int64_t stride, std::int64_t group,
                        bool multiply, double scale, bool relu, std::int64_t side, const Tensor& statistics,
                        const Tensor& dz, const std::optional<Tensor>& dextra, const Tensor& means,
                        const std::optional<Tensor>& sums) {
  const Operands operands("unit_norm_backward", z, weight);
  const std::int64_t all = operands.n() * operands.row(), pairs = operands.n() * operands.groups() * 2;
  UnitNormGradient of;
  of.norm = operands.norm(z, weight, bias, extra, stride, group, multiply, scale, relu, side);
  of.norm.statistics = operands.of("statistics", statistics, pairs, operands.state());
  of.means = operands.of("means", means, pairs, operands.state());
  of.dy = operands.of("dy", dy, all), of.dz = operands.of("dz", dz, all);
  if (dextra) of.dextra = operands.of("dextra", *dextra, operands.extras(stride));
  if (sums) of.sums = operands.of("sums", *sums, kUnitNormParts * 2 * operands.row(), operands.state());
  unit_norm_gradient(of, torch_executor(operands.device()));
}

}  // namespace
}  // namespace sparseloom::binding

#define SPARSELOOM_UNIT_NORM(m)                                    \
  m.impl("unit_norm", TORCH_BOX(&sparseloom::binding::unit_norm)); \
  m.impl("unit_norm_backward", TORCH_BOX(&sparseloom::binding::unit_norm_backward));

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m){SPARSELOOM_UNIT_NORM(m)}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  SPARSELOOM_UNIT_NORM(m)
}
