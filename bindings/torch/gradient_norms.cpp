// The operator block_gradient_norms.
#include "sparseloom/gradient_norms.h"

#include <span>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"
#include "scratch.h"

namespace sparseloom::binding {
namespace {

Tensor block_gradient_norms(const Tensor& grad_output, const Tensor& input, std::int64_t bm, std::int64_t bn,
                            Text norm_name) {
  constexpr const char* op = "block_gradient_norms";
  const BlockNorm norm = block_norm_of(op, taken(norm_name));
  const int device = device_of(op, "input", input);
  require_device(op, "grad_output", grad_output, device, "input");
  const Matrix dy = matrix_of(op, "grad_output", grad_output), x = matrix_of(op, "input", input);
  const BlockShape block = block_of(op, dy.view.cols, x.view.cols, bm, bn);
  const std::int64_t rows = core::ceil_div(dy.view.cols, bm), cols = core::ceil_div(x.view.cols, bn);
  const Executor executor = torch_executor(device);
  const Scratch workspace(op, block_gradient_norms_workspace(dy.view, x.view, block, executor), device);
  Tensor norms = new_tensor(op, {rows, cols}, ScalarType::Float, device);
  sparseloom::block_gradient_norms(
      dy.view, x.view, block, norm,
      std::span(static_cast<float*>(norms.mutable_data_ptr()), static_cast<std::size_t>(rows * cols)),
      workspace.span(), executor);
  return norms;
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("block_gradient_norms", TORCH_BOX(&sparseloom::binding::block_gradient_norms));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("block_gradient_norms", TORCH_BOX(&sparseloom::binding::block_gradient_norms));
}
