// Splits fp32 blocks into three planes of bf16, in the layout that kernel.cuh reads from shared memory.
//
// w = high + middle + low, each cut off towards zero, so that each has the sign of w. Where w is not
// below 2^-109, this is exact. What overflows in fp32 then overflows in every partial product alike, to the
// same infinity.
//
//   planes [blocks][side / 32][3][outputs][32]   side and outputs: the block's extents along the reduction
//                                                and the outputs. A row has 64 bytes and is swizzled for
//                                                wgmma. Its k are in the order 0 1 8 9 16 17 24 25 2 3 10 11
//                                                18 19 26 27, then the same + 4, so that each lane of an
//                                                operand in registers has 8 consecutive k of x.
//   kinds [blocks]                               0, kHasInfinity or kTiny
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// Some elements of the block are infinite, and zero in the planes: among products of three terms by three,
/// Inf * 0 would be NaN.
inline constexpr std::int32_t kHasInfinity = 1;
/// The whole block is zero in the planes: its largest magnitude is below 2^-100, where bf16's least denormal,
/// 2^-133, would cut off bits.
inline constexpr std::int32_t kTiny = 3;

inline std::size_t bf16x3_planes_bytes(std::int64_t blocks, BlockShape block) {
  return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(block.rows) *
         static_cast<std::size_t>(block.cols) * 6;
}
inline std::size_t bf16x3_bytes(std::int64_t blocks, BlockShape block) {
  return bf16x3_planes_bytes(blocks, block) + static_cast<std::size_t>(blocks) * sizeof(std::int32_t);
}
/// The kinds follow the planes in the workspace.
inline const std::int32_t* bf16x3_kinds(const std::byte* workspace, std::int64_t blocks, BlockShape block) {
  return reinterpret_cast<const std::int32_t*>(workspace + bf16x3_planes_bytes(blocks, block));
}

/// Block i of the planes <- values[i] [block.rows, block.cols], whose rows are the outputs; or, where slot is
/// given, the transpose of values[slot[i]], whose columns are the outputs. Values are fp32, in sides 32, 64
/// or 128. It is one launch. The workspace has bf16x3_bytes and is 16-byte aligned.
cudaError_t bf16x3_blocks(std::byte* workspace, const float* values, const std::int32_t* slot,
                          std::int64_t blocks, BlockShape block, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
