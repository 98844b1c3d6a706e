// Gates of stored blocks on the device (sparseloom/gates.h). The functions queue their launches on `stream`,
// a cudaStream_t, and return its cudaError_t. values are f32, f16 or bf16.
#pragma once

#include "sparseloom/gates.h"

namespace sparseloom::kernels::cuda {

/// sparseloom::gate_blocks in one launch; for more than 8192 blocks in two: the live blocks by rows, then by
/// columns together with the values.
int sm80_gate_blocks(const IndexView& index, const TransposedView& transposed, DType dtype,
                     const void* values, const float* gates, const GatedBlocks& gated, void* stream) noexcept;

/// sparseloom::gate_gradients in one launch.
int sm80_gate_gradients(const GateGradients& call, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
