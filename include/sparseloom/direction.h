// Direction: one of a linear layer's three products.
#pragma once

#include <cstdint>

#include "sparseloom/export.h"

namespace sparseloom {

/// Which of a linear layer's three products. W is [rows, cols] = [out features, in features]:
/// forward: Y [m, rows] = act(X [m, cols] W^T + bias) + residual
/// dx: dX [m, cols] = dY [m, rows] W
/// dw: dW = dY^T X at the stored blocks
enum class Direction : std::uint8_t { forward, dx, dw };

SPARSELOOM_API const char* name_of(Direction direction) noexcept;

}  // namespace sparseloom
