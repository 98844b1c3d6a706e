// The operators linear_train and linear_backward, the two calls of a training step. Each is one dispatch;
// separate products and passes would be four or five, each with its host overhead.
#include <array>
#include <optional>
#include <tuple>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "linear.h"
#include "operands.h"
#include "ops/activation.h"
#include "registration.h"
#include "scratch.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::binding {
namespace {

using torch::stable::detail::from;

// activation(z), for activations without a torch operator.
Tensor each_element(const char* op, const Tensor& given_z, Activation activation) {
  const Tensor z = torch::stable::contiguous(given_z);
  Tensor result = new_like(op, z, sizes_of(z));
  torch::stable::copy_(result, z);
  MatmulArgs args;
  args.dtype = dtype_of(op, "z", z), args.activation = activation;
  auto* const out = static_cast<std::byte*>(result.mutable_data_ptr());
  torch::stable::parallel_for(0, z.numel(), 1 << 13, [=](std::int64_t begin, std::int64_t end) {
    MatmulArgs part = args;
    part.out = out + begin * static_cast<std::int64_t>(size_of(args.dtype)), part.out_stride = end - begin;
    kernels::generic::finish_rows(part, end - begin, 0, 1);
  });
  return result;
}

// Calls an activation of torch. `approximate` is the argument that only gelu has; null: none.
Tensor call_torch(const char* name, const Tensor& z, const char* approximate = nullptr) {
  std::array<StableIValue, 2> stack{from(z)};
  if (approximate != nullptr) stack[1] = from(std::string(approximate));
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// On the CPU torch's own vectorised passes are as good as any.
Tensor cpu_activate(const char* op, const Tensor& z, Activation activation) {
  switch (activation) {
    case Activation::relu: return call_torch("aten::relu", z);
    case Activation::gelu_erf: return call_torch("aten::gelu", z, "none");
    case Activation::gelu_tanh: return call_torch("aten::gelu", z, "tanh");
    case Activation::silu: return call_torch("aten::silu", z);
    default: return each_element(op, z, activation);
  }
}

struct Gradient {
  Tensor dz;
  std::optional<Tensor> dbias;
};

// The gradient through activation and bias. dz is dy itself if there is no activation.
Gradient gradient_of(const char* op, const Tensor& dy, const std::optional<Tensor>& saved,
                     Activation activation, int device, bool need_bias) {
  const Executor executor = torch_executor(device);
  const Matrix grad = matrix_of(op, "dy", dy);
  Matrix kept{dy, {}};
  MatrixView dz_view;
  Gradient result{dy, {}};
  if (activation != Activation::none) {
    kept = matrix_of(op, "saved", *saved);
    result.dz = new_like(op, dy, sizes_of(dy));
    dz_view = writable(result.dz, grad.view.dtype, grad.view.rows, grad.view.cols);
  }
  if (need_bias) result.dbias = new_like(op, dy, {grad.view.cols});
  const bool scratch = need_bias || device < 0;
  const Scratch workspace(op, scratch ? ops::activation_gradient_workspace(grad.view, executor) : 0, device);
  ops::activation_gradient(grad.view, activation, kept.view, dz_view,
                           need_bias ? result.dbias->mutable_data_ptr() : nullptr, workspace.span(),
                           executor);
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> linear_train(const Tensor& x, const Tensor& values, const Tensor& index,
                                        std::int64_t out_features, std::optional<Tensor> bias,
                                        std::int64_t activation_code, std::optional<Tensor> residual,
                                        std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  constexpr const char* op = "linear";
  const Activation activation = activation_of(op, activation_code);
  const int device = device_of(op, "x", x);
  if (activation == Activation::none) core::fail(op, "an activation", "none", "call linear");
  if (device < 0) {
    if (residual)
      core::fail(op, "no residual beside an activation whose input is kept, on the CPU", "one",
                 "add it afterwards");
    Tensor z = linear(x, values, index, out_features, bias, 0, {}, row, strict, tf32, digest);
    return {cpu_activate(op, z, activation), z};
  }
  std::optional<Tensor> z;
  Tensor y =
      forward(x, values, index, out_features, bias, activation_code, residual, row, strict, tf32, digest, &z);
  return {y, *z};
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& dy, std::optional<Tensor> saved,
                                                   std::optional<Tensor> x, std::optional<Tensor> values,
                                                   const Tensor& index, std::int64_t in_features,
                                                   std::int64_t blocks, std::int64_t block_rows,
                                                   std::int64_t block_cols, std::optional<Tensor> main_grad,
                                                   bool need_bias, std::int64_t activation_code, bool strict,
                                                   bool tf32, std::int64_t digest) {
  constexpr const char* op = "linear_backward";
  const Activation activation = activation_of(op, activation_code);
  const int device = device_of(op, "dy", dy);
  if (saved) {
    require_device(op, "saved", *saved, device, "dy");
    if (sizes_of(*saved) != sizes_of(dy) || saved->scalar_type() != dy.scalar_type())
      core::fail(op, "what the forward pass saved, of dy's shape " + shape_of(dy) + " and dtype",
                 shape_of(*saved), "pass that call's own gradient");
  }
  if (saved.has_value() != (activation != Activation::none))
    core::fail(op, "saved together with an activation", saved ? "no activation" : "no saved tensor",
               "pass both, or neither");
  if (main_grad && !x) core::fail(op, "x beside main_grad", "no x", "pass both, or leave main_grad out");
  // Go back through the activation and the bias.
  Gradient gradient{dy, {}};
  if (activation != Activation::none || need_bias)
    gradient = gradient_of(op, dy, saved, activation, device, need_bias);
  // Multiply: dx, then dW.
  const Tensor& dz = gradient.dz;
  Tensor dx =
      values ? linear_dx(dz, *values, index, in_features, -1, strict, tf32, digest) : new_like(op, dy, {0});
  if (main_grad)
    add_weight_gradient(op, "main_grad", *main_grad, dz, *x, index, blocks, -1, strict, tf32, digest);
  Tensor dvalues = x && !main_grad
                       ? linear_dw(dz, *x, index, blocks, block_rows, block_cols, -1, strict, tf32, digest)
                       : new_like(op, dy, {0, 0, 0});
  return {dx, dvalues, need_bias ? *gradient.dbias : new_like(op, dy, {0})};
}

}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("bsr_linear_train", TORCH_BOX(&sparseloom::binding::linear_train));
  m.impl("bsr_linear_backward", TORCH_BOX(&sparseloom::binding::linear_backward));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("bsr_linear_train", TORCH_BOX(&sparseloom::binding::linear_train));
  m.impl("bsr_linear_backward", TORCH_BOX(&sparseloom::binding::linear_backward));
}
