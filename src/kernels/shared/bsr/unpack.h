// A dense matrix of stored blocks on the device: the device version of sparseloom::unpack.
#pragma once

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// dense [rows, taps, cols] <- values [blocks, taps, bm, bn] at their places, zero elsewhere. `taps`: 1, but
/// for the weight of a convolution. `stream` is a cudaStream_t. Queues one launch and returns its
/// cudaError_t.
int sm80_bsr_unpack(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                    void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
