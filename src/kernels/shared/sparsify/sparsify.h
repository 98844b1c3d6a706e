// The sparsifiers of include/sparseloom/sparsifiers.h on the device, which select the same elements as on the
// CPU, and the column_sweep of one_shot.h.
#pragma once

#include <cstddef>

#include "sparseloom/matrix_view.h"
#include "sparseloom/one_shot.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::kernels::cuda {

/// One call. All memory is on `device`, which is the thread's current one; `dense` is f32, f16, bf16 or f64
/// and not empty, and the spec is valid.
struct Sparsify {
  ConstMatrixView dense;
  SparsifierSpec spec;
  SparsifierResult result;
  std::byte* workspace = nullptr;  // sm80_sparsify_workspace bytes, aligned to 16
  int multiprocessors = 1;
  int device = 0;
  void* stream = nullptr;  // a cudaStream_t
};

/// Bytes of workspace: none for selections whose kernels choose as they read. scalar_fraction takes 256 KiB
/// of counts, FractionSpace's (fraction.cuh) candidates, which are O(elements that stay) and at most 8 MiB,
/// and 8 bytes per 2048 elements; blockwise_fraction takes the same for its blocks, and 5 bytes per block.
std::size_t sm80_sparsify_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec) noexcept;

/// Queues the kernels on the stream and returns a cudaError_t.
int sm80_sparsify(const Sparsify& call) noexcept;

/// The counts of elements that the kernels of the thread's current device have read so far. Waits for the
/// device's default stream only. Returns a cudaError_t.
int sm80_sparsifier_reads(SparsifierReads& reads) noexcept;

/// Queues the kernel on the stream, a cudaStream_t, of the thread's current device, and returns a
/// cudaError_t. The sweep is valid and not empty.
int sm80_column_sweep(const ColumnSweep& sweep, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
