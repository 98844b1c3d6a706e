// Passes of activations over whole matrices: for products whose epilogue cannot apply them, and for the
// gradients of an activation and of the bias before it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/activation.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// y <- activation(z) + residual, all of one shape and dtype. z may be y; a null residual is not added.
/// `stream` is a cudaStream_t. Queues one launch and returns its cudaError_t.
int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                  const MatrixView& y, void* stream) noexcept;

/// dz <- dy act'(saved) and dbias <- its column sums, in one pass over the matrices (and one over the few
/// partial sums). Supports f32, f16 and bf16.
struct ActivationGradientArgs {
  Activation activation = Activation::none;  // with `none`, dz is dy and only dbias can be requested
  ConstMatrixView dy;
  ConstMatrixView saved;  // same shape as dy; the output for relu, the pre-activation for the others
  MatrixView dz;          // same shape as dy; null data if not wanted
  void* dbias = nullptr;  // [cols] of dy's dtype, summed in fp32 before dz is rounded; null if not wanted
  std::byte* workspace = nullptr;
  int device = 0, multiprocessors = 1;
  void* stream = nullptr;  // cudaStream_t
};
/// Queues the launches and returns a cudaError_t.
int sm80_activation_gradient(const ActivationGradientArgs& args) noexcept;
/// Bytes of workspace for dbias; without dbias none is needed.
std::size_t sm80_activation_gradient_workspace(std::int64_t rows, std::int64_t cols, DType dtype,
                                               int multiprocessors) noexcept;

}  // namespace sparseloom::kernels::cuda
