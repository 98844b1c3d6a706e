// The cells on the CPU for one instruction set, and the norms between their steps.
#pragma once

#include <cstdint>

#include "sparseloom/recurrent.h"
#include "sparseloom/unit_norm.h"

namespace sparseloom::kernels::cpu {

/// Each computes the units [begin, end) of one row; begin is a multiple of 16. All but `scalar` do not
/// support f64.
struct CellOps {
  void (*lstm)(const LstmCell& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*lstm_gradient)(const LstmCellGradient& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*gru)(const GruCell& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
  void (*gru_gradient)(const GruCellGradient& cell, std::int64_t row, std::int64_t begin, std::int64_t end);
};

extern const CellOps kCellsScalar, kCellsAvx2;

/// One row with all its groups.
void unit_norm_row(const UnitNorm& norm, std::int64_t row);

/// The rows part, part + kUnitNormParts, ..., which alone add to the part's sums.
void unit_norm_gradient_part(const UnitNormGradient& norm, std::int64_t part);

}  // namespace sparseloom::kernels::cpu
