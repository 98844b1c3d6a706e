// The cells on a CUDA device. Each queues one launch on `stream`, a cudaStream_t, and returns its
// cudaError_t.
#pragma once

#include "sparseloom/recurrent.h"

namespace sparseloom::kernels::cuda {

int sm80_lstm_cell(const LstmCell& cell, void* stream) noexcept;
int sm80_lstm_cell_gradient(const LstmCellGradient& cell, void* stream) noexcept;
int sm80_gru_cell(const GruCell& cell, void* stream) noexcept;
int sm80_gru_cell_gradient(const GruCellGradient& cell, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
