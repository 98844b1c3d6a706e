// The cells on the CPU: what an instruction set provides.
#pragma once

#include <cstdint>

#include "sparseloom/recurrent.h"

namespace sparseloom::kernels::cpu {

/// Each computes the units [begin, end) of one row; begin is a multiple of 16. All but `scalar` leave f64
/// out.
struct CellOps {
  void (*lstm)(const LstmCell& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*lstm_gradient)(const LstmCellGradient& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*gru)(const GruCell& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*gru_gradient)(const GruCellGradient& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
};

extern const CellOps kCellsScalar, kCellsAvx2;

}  // namespace sparseloom::kernels::cpu
