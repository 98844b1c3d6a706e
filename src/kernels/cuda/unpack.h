// Host side of the CUDA room's copies. Plain C++: no CUDA header, so that ops need none.
#pragma once

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// dense <- values at their places, zero elsewhere: the device twin of sparseloom::unpack. All pointers are device pointers;
/// `stream` is a cudaStream_t (null: the default stream). Asynchronous; returns a cudaError_t, 0 when launched.
int sm80_bsr_unpack(const IndexView& index, const void* values, const MatrixView& dense, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
