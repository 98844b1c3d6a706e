// The first pass of a backward pass on the CPU: dz = dy act'(saved) and the column sums of dz, the gradient
// of the bias, in one parallel region. On CUDA: kernels/shared/activation/activation.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/activation.h"
#include "sparseloom/executor.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cpu {

struct GradientArgs {
  Activation activation = Activation::none;
  ConstMatrixView dy;              // f64, f32, f16 or bf16
  ConstMatrixView saved;           // relu: its output; the others: the pre-activation
  MatrixView dz;                   // saved and dz are not touched without an activation
  void* dbias = nullptr;           // [cols] in dy's dtype: sums of the rounded dz; null: not wanted
  std::byte* workspace = nullptr;  // gradient_workspace bytes, aligned to 64
};

/// A tile of the matrix: rows and columns [begin, end). Columns begin at a multiple of 8.
struct GradientTile {
  std::int64_t row, row_end, col, col_end;
};

/// The functions of an instruction set.
struct GradientOps {
  std::int64_t sum_bytes;
  /// Writes dz of a tile, and its column sums to sums[col] .. if that is not null.
  void (*rows)(const GradientArgs& args, const GradientTile& tile, void* sums);
  /// dbias <- the sum of `chunks` rows of sums [chunks, cols], in order, for columns [begin, end).
  void (*total)(const GradientArgs& args, const void* sums, std::int64_t chunks, std::int64_t begin,
                std::int64_t end);
};

/// kGradientAvx2 does not support f64.
extern const GradientOps kGradientScalar, kGradientAvx2;

std::size_t gradient_workspace(const ConstMatrixView& dy);

/// The result does not depend on the executor.
void gradient(const GradientArgs& args, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
