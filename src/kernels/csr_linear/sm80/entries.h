// The host entries of this family's CUDA kernels, a folder each: copies, gather, sampled and slabs, and their
// arguments: the operands as in MatmulArgs, and W. They queue their launches on args.stream or `stream`, a
// cudaStream_t, and return a cudaError_t.
#pragma once

#include <cstddef>

#include "kernels/csr_linear/sm80/slabs/shape.h"
#include "sparseloom/csr.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// One product of args.direction. `args.index` is empty; dX needs the column index of `w`.
struct CsrProduct {
  const MatmulArgs& args;
  const CsrView& w;
};

/// dense <- the values at their positions, zero elsewhere. Each function queues its work on `stream`, a
/// cudaStream_t, and returns a cudaError_t.
int csr_unpack(const CsrView& w, const void* values, const MatrixView& dense, void* stream) noexcept;

/// values <- dense at the stored elements.
int csr_gather(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept;

/// values += dense at the stored elements, both f32.
int csr_gather_add(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept;

/// by_column[i] <- values[w.slot[i]]: the values in the order of the column index.
int csr_by_column(DType dtype, const CsrView& w, const void* values, void* by_column, void* stream) noexcept;

/// Tokens multiplied at a time if there are several.
inline constexpr int kCsrGatherTokens = 4;

/// Whether x of this reduction length (dW: of this many tokens) is copied to shared memory; otherwise it is
/// read from global memory.
bool csr_gather_stages(Direction direction, std::int64_t depth, std::int64_t m, DType dtype);

int sm80_csr_gather(const CsrProduct& product) noexcept;

/// Tokens per lane: 1, 2 or 4.
constexpr int csr_sampled_tokens(std::int64_t m) { return m <= 32 ? 1 : m <= 64 ? 2 : 4; }
/// Tokens multiplied, padded with zeros past m.
constexpr std::int64_t csr_sampled_padded(std::int64_t m) {
  const std::int64_t tile = 32 * csr_sampled_tokens(m);
  return (m + tile - 1) / tile * tile;
}

/// Bytes of args.workspace.
std::size_t csr_sampled_workspace(std::int64_t rows, std::int64_t cols, std::int64_t m, DType dtype);

int sm80_csr_sampled(const CsrProduct& product) noexcept;

/// Bytes of args.workspace: for dX it holds the values in the order of the columns.
std::size_t csr_slabs_workspace(Direction direction, std::int64_t stored, DType dtype);

/// `cut`: an index into slabs::kCuts. `most`: the most bytes of shared memory of a thread block.
int sm80_csr_slabs(const CsrProduct& product, int cut, int most) noexcept;

}  // namespace sparseloom::kernels::cuda
