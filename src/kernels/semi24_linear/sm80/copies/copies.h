// Copies between a dense matrix and the values of a 2:4 one, on the device. They serve the dense row,
// and unpack the operation semi24_unpack.
#pragma once

#include "sparseloom/matrix_view.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cuda {

/// dense <- the values at their places, zero elsewhere. Each function queues one launch on `stream`, a
/// cudaStream_t, and returns a cudaError_t.
int semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) noexcept;

/// values <- dense at the stored elements, and zero beyond its columns.
int semi24_gather(const ConstMatrixView& dense, const Semi24View& w, void* values, void* stream) noexcept;

/// values += dense at the stored elements, both f32.
int semi24_gather_add(const ConstMatrixView& dense, const Semi24View& w, void* values, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
