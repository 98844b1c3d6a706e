// The weight of a convolution between blocks and dense channels-last memory [rows, taps * cols].
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels {

/// values [blocks][taps][bm, bn] <- the blocks of `dense`, with zeros as padding, bit by bit; on the
/// executor's threads, or queued on its stream. Returns 0 or a cudaError_t.
int pack_conv(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
              const Executor& executor);

/// The other way: dense <- values at their places, zero elsewhere.
int unpack_conv(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                const Executor& executor);

}  // namespace sparseloom::kernels
