// Copies between a dense matrix and the values of a CSR one, on the device. They serve the dense row, and dX.
#pragma once

#include "sparseloom/csr.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// dense <- the values at their places, zero elsewhere. Each function queues its work on `stream`, a
/// cudaStream_t, and returns a cudaError_t.
int csr_unpack(const CsrView& w, const void* values, const MatrixView& dense, void* stream) noexcept;

/// values <- dense at the stored elements.
int csr_gather(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept;

/// values += dense at the stored elements, both f32.
int csr_gather_add(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept;

/// by_column[i] <- values[w.slot[i]]: the values in the order of the column index.
int csr_by_column(DType dtype, const CsrView& w, const void* values, void* by_column, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
