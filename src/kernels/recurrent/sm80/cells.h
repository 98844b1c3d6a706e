// The cells on a CUDA device, and the norms between their steps. Each queues its launches on `stream`, a
// cudaStream_t, and returns its cudaError_t.
#pragma once

#include "sparseloom/recurrent.h"
#include "sparseloom/unit_norm.h"

namespace sparseloom::kernels::cuda {

int sm80_lstm_cell(const LstmCell& cell, void* stream) noexcept;
int sm80_lstm_cell_gradient(const LstmCellGradient& cell, void* stream) noexcept;
int sm80_gru_cell(const GruCell& cell, void* stream) noexcept;
int sm80_gru_cell_gradient(const GruCellGradient& cell, void* stream) noexcept;

int sm80_unit_norm(const UnitNorm& norm, void* stream) noexcept;
int sm80_unit_norm_gradient(const UnitNormGradient& norm, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
