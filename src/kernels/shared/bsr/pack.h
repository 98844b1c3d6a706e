// The blocks of a dense matrix on the device, and back: the device versions of sparseloom::pack and unpack.
#pragma once

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// values [blocks, taps, bm, bn] <- the blocks of dense [rows, taps, cols] that the index names, with zeros
/// as padding. `taps`: 1, except for the weight of a convolution. `stream` is a cudaStream_t. Queues one
/// launch and returns its cudaError_t.
int sm80_bsr_pack(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
                  void* stream) noexcept;
/// values += those blocks, for one tap. dense and values must be f32.
int sm80_bsr_add(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;

/// dense [rows, taps, cols] <- values [blocks, taps, bm, bn] at their positions, zero elsewhere. `taps`: 1,
/// except for the weight of a convolution. `stream` is a cudaStream_t. Queues one launch and returns its
/// cudaError_t.
int sm80_bsr_unpack(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                    void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
