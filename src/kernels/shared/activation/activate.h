// The pass for products whose own epilogue cannot activate.
#pragma once

#include "sparseloom/activation.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// y <- activation(z) + residual, all of one shape and dtype. z may be y; a residual without memory is not
/// added. `stream` is a cudaStream_t. Queues one launch and returns its cudaError_t.
int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                  const MatrixView& y, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
