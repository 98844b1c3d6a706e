// What torch lends: its own thread pool or stream, and its own dense product.
#pragma once

#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// CPU (device < 0): torch.get_num_threads() ranges on torch's pool. CUDA: torch's current stream of that
/// device. On both, aten::linear and aten::mm as the GEMM. Throws Error when this torch has no CUDA.
Executor torch_executor(int device = -1);

}  // namespace sparseloom::binding
