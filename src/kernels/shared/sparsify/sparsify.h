// The sparsifiers of include/sparseloom/sparsifiers.h on the device: the elements that the CPU takes.
#pragma once

#include <cstddef>

#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::kernels::cuda {

/// One call. All memory lies on `device`, which is the thread's current one; `dense` is f32, f16, bf16 or
/// f64 and has elements, and the spec is valid.
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
/// of counts, what FractionSpace (fraction.cuh) says for candidates, which is O(what stays) and at most 8
/// MiB, and 8 bytes for each 2048 elements; blockwise_fraction the same of its blocks, and 5 bytes for each.
std::size_t sm80_sparsify_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec) noexcept;

/// Queues the kernels on the stream and returns a cudaError_t.
int sm80_sparsify(const Sparsify& call) noexcept;

/// What the kernels of the thread's current device have read so far, as they counted. Waits for the device's
/// default stream alone. Returns a cudaError_t.
int sm80_sparsifier_reads(SparsifierReads& reads) noexcept;

}  // namespace sparseloom::kernels::cuda
