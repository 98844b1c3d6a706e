// The executor that torch lends: its thread pool or current stream, and its dense products.
#pragma once

#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// The threads of a call on the CPU: torch's number, or what set_num_threads allows if that is less.
int num_threads();
/// Caps the threads of all later calls of the process; 0: torch's number. Throws Error for less.
void set_num_threads(int most);

/// On the CPU (device < 0): num_threads() ranges on torch's pool, or on Executor::pool() while torch's
/// threads come late. On CUDA: torch's current stream of that device. On both, aten::linear and aten::mm are
/// the GEMM, aten::_scaled_mm the scaled one, and torch_conv (lent_conv.h) the convolution. Throws Error if
/// this torch has no CUDA.
Executor torch_executor(int device = -1);

}  // namespace sparseloom::binding
