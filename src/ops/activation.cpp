// The passes over activations that surround the products of a training step.
#include "ops/activation.h"

#include <string>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/gradient.h"
#include "kernels/shared/activation/activation.h"
#include "ops/checks.h"
#include "runtime/cuda.h"

namespace sparseloom::ops {

void activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
              const MatrixView& y, const Executor& executor) {
  require_gpu("linear", executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  require_queued("linear", kernels::cuda::sm80_activate(z, activation, residual, y, executor.stream),
                 executor);
#else
  static_cast<void>(z), static_cast<void>(activation), static_cast<void>(residual), static_cast<void>(y);
#endif
}

void activation_gradient(const ConstMatrixView& dy, Activation activation, const ConstMatrixView& saved,
                         const MatrixView& dz, void* dbias, std::span<std::byte> workspace,
                         const Executor& executor) {
  constexpr const char* op = "linear_backward";
  if (dy.dtype == DType::i8 || dy.dtype == DType::f8e4m3)
    core::fail(op, "a gradient of floating point", name_of(dy.dtype), "8-bit products are forward only");
  const auto same = [&](const ConstMatrixView& m) {
    return m.rows == dy.rows && m.cols == dy.cols && m.dtype == dy.dtype;
  };
  if (activation != Activation::none && !same(saved))
    core::fail(op,
               std::string("what the forward pass saved as dy: ") + name_of(dy.dtype) + " " +
                   core::shape(dy.rows, dy.cols),
               std::string(name_of(saved.dtype)) + " " + core::shape(saved.rows, saved.cols),
               "pass that call's own gradient");
  if (executor.device < 0)
    return kernels::cpu::gradient({activation, dy, saved, dz, dbias, workspace.data()}, executor);
  [[maybe_unused]] const runtime::CudaDevice& device = require_gpu(op, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  kernels::cuda::ActivationGradientArgs args;
  args.activation = activation;
  args.dy = dy;
  args.saved = saved;
  args.dz = dz;
  args.dbias = dbias;
  args.workspace = workspace.data();
  args.device = executor.device;
  args.multiprocessors = device.multiprocessors;
  args.stream = executor.stream;
  const runtime::CudaDeviceScope scope(executor.device);
  require_queued(op, kernels::cuda::sm80_activation_gradient(args), executor);
#endif
}

std::size_t activation_gradient_workspace(const ConstMatrixView& dy, const Executor& executor) {
  if (executor.device < 0) return kernels::cpu::gradient_workspace(dy);
#ifdef SPARSELOOM_HAVE_CUDA
  return kernels::cuda::sm80_activation_gradient_workspace(
      dy.rows, dy.cols, dy.dtype, runtime::cuda_device(executor.device).multiprocessors);
#else
  return 0;
#endif
}

}  // namespace sparseloom::ops
