// Calls of the driver's functions that make tensor maps.
#pragma once

#include <cuda.h>

namespace sparseloom::kernels::cuda {

/// Makes the primary context of the thread's device current.
bool make_context_current() noexcept;

/// Whether `encode`, which returns the CUresult of a driver's function, succeeds. A thread that has not
/// called the CUDA runtime has no current context, which the driver's functions need and the runtime's do
/// not: torch's autograd thread is one until torch allocates memory in it. Then the primary context is made
/// current, and `encode` is called again.
template <class Encode>
bool encoded(Encode&& encode) noexcept {
  CUresult result = encode();
  if (result == CUDA_ERROR_INVALID_CONTEXT && make_context_current()) result = encode();
  return result == CUDA_SUCCESS;
}

}  // namespace sparseloom::kernels::cuda
