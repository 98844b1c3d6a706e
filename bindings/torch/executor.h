// What torch lends: its own thread pool and its own dense product.
#pragma once

#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// torch.get_num_threads() ranges on torch's pool; aten::linear and aten::mm as the GEMM.
Executor torch_executor();

}  // namespace sparseloom::binding
