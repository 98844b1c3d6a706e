// The executor that torch lends: its thread pool or current stream, and its dense products.
#pragma once

#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// On the CPU (device < 0): torch.get_num_threads() ranges on torch's pool. On CUDA: torch's current stream
/// of that device. On both, aten::linear and aten::mm are the GEMM, aten::_scaled_mm the scaled one, and
/// torch_conv (lent_conv.h) the convolution.
/// Throws Error if this torch has no CUDA.
Executor torch_executor(int device = -1);

}  // namespace sparseloom::binding
