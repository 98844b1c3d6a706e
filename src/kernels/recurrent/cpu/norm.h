// The norms between the steps of a recurrent cell on the CPU.
#pragma once

#include <cstdint>

#include "sparseloom/unit_norm.h"

namespace sparseloom::kernels::cpu {

/// One row with all its groups.
void unit_norm_row(const UnitNorm& norm, std::int64_t row);

/// The rows part, part + kUnitNormParts, ..., which alone add to the part's sums.
void unit_norm_gradient_part(const UnitNormGradient& norm, std::int64_t part);

}  // namespace sparseloom::kernels::cpu
