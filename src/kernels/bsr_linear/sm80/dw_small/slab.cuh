// Slabs of dw_small: columns of an operand for all tokens in shared memory, laid out [tokens][columns] like
// the operand, and their copies from global memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_small/entry.h"
#include "kernels/bsr_linear/sm80/mma/dw/tile.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::dw_small {

constexpr int kThreads = 32 * kWarps;

/// Rows of 16-byte chunks, one row per token, at most kThreads chunks wide. ldmatrix reads a chunk of eight
/// tokens; the chunk's index is xored with the token's, so that they lie in different banks (SharedTile in
/// mma/dw/tile.cuh, for a width that is known at run time).
struct Slab {
  std::byte* memory;
  int log2_chunks;

  /// The XOR operand of a chunk's index; it is the same for tokens that differ by multiples of eight.
  __device__ __forceinline__ int turn(int token) const {
    const int bits = log2_chunks < 3 ? log2_chunks : 3;
    return token % 8 >> (3 - bits);
  }
  __device__ __forceinline__ int offset(int token, int chunk) const {
    return (token << log2_chunks | (chunk ^ turn(token))) * 16;
  }
  __device__ __forceinline__ int token_bytes() const { return 16 << log2_chunks; }
  __device__ __forceinline__ int bytes(int tokens) const { return tokens * token_bytes(); }
  __device__ __forceinline__ int chunk_of_thread() const { return threadIdx.x & ((1 << log2_chunks) - 1); }
};

/// Copies the thread's chunk of `tokens` tokens from `first` on. `column` is the chunk's first column in the
/// matrix, of m tokens and `columns` columns; elements past the edges become zeros. The data is visible to
/// this thread after its next commit and wait, to the others after a barrier.
__device__ __forceinline__ void copy_chunks(const Slab& slab, const void* matrix, std::int64_t stride,
                                            std::int64_t columns, std::int64_t column, int first, int m,
                                            int tokens, bool by_chunks) {
  const int chunk = slab.chunk_of_thread(), step = kThreads >> slab.log2_chunks;
  const std::int64_t inside = columns - column;
  const int bytes = inside >= 8 ? 16 : inside > 0 ? static_cast<int>(inside) * 2 : 0;
  int token = threadIdx.x >> slab.log2_chunks;
  const auto* source = static_cast<const std::byte*>(matrix) + ((first + token) * stride + column) * 2;
  const std::int64_t source_step = step * stride * 2;
  if (by_chunks) {
    const std::uint32_t to = ptx::shared_address(slab.memory);
#pragma unroll 4
    for (; token < tokens; token += step, source += source_step) {
      const int present = first + token < m ? bytes : 0;
      ptx::cp_async_cg(to + slab.offset(token, chunk), present > 0 ? source : matrix, present);
    }
  } else {
#pragma unroll 1
    for (; token < tokens; token += step, source += source_step) {
      *reinterpret_cast<uint4*>(slab.memory + slab.offset(token, chunk)) =
          mma::dw::read_elements<std::uint16_t>(source, first + token < m ? bytes : 0);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::dw_small
