// What lies between the products of a training step on a CUDA device, for the binding; on the CPU torch's own
// passes do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/ops.h"
#include "sparseloom/plan.h"

namespace sparseloom::ops {

/// sparseloom::linear with pre <- x W^T + bias beside y: by the kernel's own epilogue where it can, else y is
/// made of pre in a pass.
void linear_saving(const Plan& plan, const ConstMatrixView& x, const IndexView& index, const void* values,
                   const Addends& addends, const MatrixView& pre, const MatrixView& y,
                   std::span<std::byte> workspace, const Executor& executor);

/// y <- activation(z) + residual, of one shape and dtype; a residual without memory is none. Queued. Throws
/// Error when it cannot be.
void activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
              const MatrixView& y, const Executor& executor);

/// dz <- dy act'(saved) when dz has memory, dbias <- column sums of dz when not null; `saved` is relu's
/// output, else the pre-activation. workspace: activation_gradient_workspace bytes, aligned to 256. Queued.
/// Throws Error when it cannot be.
void activation_gradient(const ConstMatrixView& dy, Activation activation, const ConstMatrixView& saved,
                         const MatrixView& dz, void* dbias, std::span<std::byte> workspace,
                         const Executor& executor);
std::size_t activation_gradient_workspace(const ConstMatrixView& dy, const Executor& executor);

}  // namespace sparseloom::ops
