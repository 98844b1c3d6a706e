// The activation passes between the products of a training step, for the binding. On the CPU, torch's own
// passes follow the forward product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/ops.h"

namespace sparseloom::ops {

/// sparseloom::linear that also writes pre <- x W^T + bias. The kernel's own epilogue writes both if it can;
/// otherwise the kernel writes pre and a second pass computes y from it.
SPARSELOOM_API void linear_saving(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                                  const void* values, const Addends& addends, const MatrixView& pre,
                                  const MatrixView& y, std::span<std::byte> workspace,
                                  const Executor& executor);

/// y <- activation(z) + residual, all of one shape and dtype; a residual with null data adds nothing. Queued
/// on the executor's stream. Throws Error if that fails.
void activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
              const MatrixView& y, const Executor& executor);

/// dz <- dy act'(saved) if dz has memory; dbias <- column sums of dz (of dy without activation) if it is not
/// null. `saved` is the output of relu, and the pre-activation for the other activations. workspace:
/// activation_gradient_workspace bytes, aligned to 256 (on the CPU to 64). On the CPU, which also supports
/// f64, it opens one parallel region and requires dz for every activation; on a device it is queued on the
/// executor's stream. Throws Error if that fails, and for 8 bits.
SPARSELOOM_API void activation_gradient(const ConstMatrixView& dy, Activation activation,
                                        const ConstMatrixView& saved, const MatrixView& dz, void* dbias,
                                        std::span<std::byte> workspace, const Executor& executor);
SPARSELOOM_API std::size_t activation_gradient_workspace(const ConstMatrixView& dy, const Executor& executor);

}  // namespace sparseloom::ops
