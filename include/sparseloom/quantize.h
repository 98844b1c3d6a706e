// Rows in 8 bits, as the 8-bit products read them.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// Where quantize_rows writes; x ~ values * scale.
struct QuantizedRows {
  std::int8_t* values = nullptr;  // [rows, cols], contiguous
  float* scale = nullptr;         // [rows], or null where a factor is given
};

/// Rounds x (f32, f16 or bf16) to nearest even within -127 .. 127. Without `given`, each row has its own
/// factor, its largest |x| over 127; a row that holds NaN or Inf has that as its factor, and zeros as its
/// values. With `given`, x / *given is clipped, and a NaN becomes 0. A factor without a finite inverse gives
/// zeros. The bits do not depend on the executor. Throws Error on CUDA devices, for another dtype and for
/// null arrays.
SPARSELOOM_API void quantize_rows(const ConstMatrixView& x, const float* given, const QuantizedRows& out,
                                  const Executor& executor);

}  // namespace sparseloom
