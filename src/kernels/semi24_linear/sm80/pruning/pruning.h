// Prunes a weight to 2:4 and packs it, in one kernel that reads it once.
#pragma once

#include <cstdint>

#include "sparseloom/matrix_view.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom::kernels::cuda {

/// Writes `out` as semi24_compress (semi24_ops.h) says, whose bits it has. w is f32, f16 or bf16. Queues one
/// kernel on `stream`, a cudaStream_t, and returns a cudaError_t.
int semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                    void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
