// column_sweep of include/sparseloom/one_shot.h on the device.
#pragma once

#include "sparseloom/one_shot.h"

namespace sparseloom::kernels::cuda {

/// Queues the kernel on the stream, a cudaStream_t, of the thread's current device, and returns a
/// cudaError_t. The sweep is valid and not empty.
int sm80_column_sweep(const ColumnSweep& sweep, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
