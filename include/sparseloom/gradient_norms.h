// The norms of the blocks of a weight's gradient dY^T X, of all blocks, without the gradient itself: by them
// RigL chooses the blocks that grow.
#pragma once

#include <cstddef>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// Bytes of workspace that block_gradient_norms takes for these operands: some block rows of the gradient on
/// the CPU, none on CUDA. Throws Error as block_gradient_norms does.
SPARSELOOM_API std::size_t block_gradient_norms_workspace(const ConstMatrixView& grad_output,
                                                          const ConstMatrixView& input, BlockShape block,
                                                          const Executor& executor);

/// Writes the norm of each block of dY^T X to norms [block rows * block columns], row-major: grad_output dY
/// [m, out features] and input X [m, in features] are of one dtype, f32, f16 or bf16; a block at an edge has
/// the elements that exist. Everything lies on the executor's device; on CUDA the work is queued on the
/// stream. The sums over tokens are in fp32 and are not rounded before the norm is taken. A NaN in a block
/// makes its norm NaN. The same call gives the same bits every time. `workspace` is aligned to 64 bytes.
/// Throws Error on sizes, dtypes or a workspace that do not fit.
SPARSELOOM_API void block_gradient_norms(const ConstMatrixView& grad_output, const ConstMatrixView& input,
                                         BlockShape block, BlockNorm norm, std::span<float> norms,
                                         std::span<std::byte> workspace, const Executor& executor);

}  // namespace sparseloom
