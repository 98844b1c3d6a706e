// The host entries of this family's CUDA kernels that read positions in memory of record, a folder each:
// copies (between a dense matrix and the values, for the dense row and the operation semi24_unpack),
// forward_dots (8-bit products of any size and alignment), pruning (prunes a weight and packs it, in one
// kernel that reads it once) and fp32_ffma.
#pragma once

#include <cstdint>

#include "sparseloom/matmul_args.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/semi24.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom::kernels::cuda {

/// dense <- the values at their columns, zero elsewhere. Each function queues one launch on `stream`, a
/// cudaStream_t, and returns a cudaError_t.
int semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) noexcept;

/// values <- dense at the stored elements, and zero past its columns.
int semi24_gather(const ConstMatrixView& dense, const Semi24View& w, void* values, void* stream) noexcept;

/// values += dense at the stored elements, both f32.
int semi24_gather_add(const ConstMatrixView& dense, const Semi24View& w, void* values, void* stream) noexcept;

/// Forward of i8 and f8e4m3 as defined in matmul_args.h, from the positions in memory of record. Queues one
/// launch on args.stream and returns a cudaError_t.
int sm80_semi24_dots(const MatmulArgs& args, const Semi24View& w) noexcept;

/// Writes `out` with the same bits as semi24_compress (semi24_ops.h). w is f32, f16 or bf16. Queues one
/// kernel on `stream`, a cudaStream_t, and returns a cudaError_t.
int semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning, const Semi24Compressed& out,
                    void* stream) noexcept;

namespace semi24_ffma {

/// Tokens per thread of the instances. More tokens take further thread blocks.
inline constexpr int kTokens[] = {1, 4, 8};
inline constexpr int kTokensCount = 3, kMostRanks = 8, kMostTokens = 64;
/// Outputs per thread block of forward; in features per thread block of dX, and rows of W per step of its
/// warps.
inline constexpr int kForwardRows = 4, kDxInputs = 128, kDxRows = 32;

}  // namespace semi24_ffma

/// Forward and dX of f32, with kTokens[instance] tokens per thread. cols is a multiple of 8; x and values are
/// aligned to 16 bytes, and so are the rows of x.
int sm80_semi24_ffma_forward(const MatmulArgs& args, const Semi24View& w, int instance) noexcept;

/// dX, with the rows of W divided over a cluster of `ranks` thread blocks: 1, and on compute capability 9.0
/// also 2, 4 or 8. rows is a multiple of 4; dY and out are aligned to 16 bytes, and so are their rows.
int sm80_semi24_ffma_dx(const MatmulArgs& args, const Semi24View& w, int instance, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
