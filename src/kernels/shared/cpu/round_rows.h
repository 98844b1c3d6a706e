// Rows of floating point to int8 on the CPU; sparseloom/quantize.h has the rule.
#pragma once

#include <cstdint>

#include "kernels/shared/cpu/cell.h"
#include "sparseloom/executor.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/quantize.h"

namespace sparseloom::kernels::cpu {

struct RoundRows {
  ConstMatrixView x;  // f32, f16 or bf16
  const float* given = nullptr;
  QuantizedRows out;
};

inline constexpr float kMostInt8 = 127;

/// The inverse of a row's factor, which its elements are multiplied by; 0 where it is not finite.
inline float inverse_of(float scale) {
  const float inverse = 1 / scale;
  return inverse - inverse == 0 ? inverse : 0;
}

inline float as_f32(float x) { return x; }
inline float as_f32(F16 x) { return core::to_f32(x); }
inline float as_f32(Bf16 x) { return core::to_f32(x); }

/// Each rounds rows [begin, end).
void round_rows_avx2(const RoundRows& call, std::int64_t begin, std::int64_t end);
void round_rows_avx512(const RoundRows& call, std::int64_t begin, std::int64_t end);

void round_rows(const RoundRows& call, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
