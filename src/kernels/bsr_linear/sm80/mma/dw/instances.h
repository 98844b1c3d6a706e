// Interface between the launcher of the tensor-core dW kernel and its instances: one launch function per
// dtype, each in a file of its own so that they compile in parallel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/cut.h"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda {

/// Parameters of the kernel. One thread block computes one work item, up to `group` consecutive blocks of one
/// block row, over one segment (piece) of the tokens.
struct MmaDwParams {
  const void* dy;  // [m, rows]
  const void* x;   // [m, cols]
  std::int64_t dy_stride, x_stride;
  std::int64_t m, rows, cols;
  const std::int32_t* crow;
  const std::int32_t* col;
  std::int64_t block_rows;
  int log2_bn, log2_group;
  std::int64_t piece_tokens;
  void* out;                 // [elements] of the dtype, or fp32
  float* partial;            // [pieces, elements]; null: one segment, directly to out
  std::int64_t elements;     // blocks * bm * bn
  bool dy_chunks, x_chunks;  // 16-byte chunks of the rows are aligned: cp.async; otherwise by elements
  bool accumulate;           // out is fp32 and added to
};

/// Number of item ids, computed from the number of blocks alone. Called with crow[r] and r, it is also the
/// first id of block row r. Ids past a block row's last item are empty. With a group of 1, there is one id
/// per block.
__host__ __device__ constexpr std::int64_t mma_dw_items(std::int64_t blocks, std::int64_t block_rows,
                                                        int log2_group) {
  return (blocks >> log2_group) + (log2_group == 0 ? 0 : block_rows);
}

/// grid.x: items, grid.y: segments of the tokens.
cudaError_t mma_dw_bf16(const MmaDwParams& params, int bm, dim3 grid, int device,
                        cudaStream_t stream) noexcept;
cudaError_t mma_dw_f16(const MmaDwParams& params, int bm, dim3 grid, int device,
                       cudaStream_t stream) noexcept;
cudaError_t mma_dw_tf32(const MmaDwParams& params, int bm, dim3 grid, int device,
                        cudaStream_t stream) noexcept;

/// out[e] = partial[0][e] + partial[1][e] + ..., in this order, rounded once to the dtype. With `accumulate`,
/// out is fp32 and out[e] += that sum. `partial` is aligned to 16 bytes; `elements` is a multiple of 4.
cudaError_t sum_pieces(const float* partial, std::int64_t elements, int pieces, DType dtype, bool accumulate,
                       void* out, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
