// fp32 blocks as three planes of bf16, as wgmma_dds_split.cuh wants them in shared memory.
//
//   w = high + middle + low, each cut off towards zero, so that each has the sign of w: exact for |w| >=
//   2^-109. What overflows in fp32 then overflows in every partial product alike, to the same infinity.
//
//   planes [blocks][side / 32][3][lines][32]   side: of the block along the reduction; rows of 64 bytes,
//   swizzled for wgmma. k of a
//                                              row: 0 1 8 9 16 17 24 25 2 3 10 11 18 19 26 27, then the same
//                                              + 4, so that each lane of an operand in registers has 8
//                                              consecutive k of x
//   kinds [blocks]                             0, kHasInfinity or kTiny
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sparseloom/pattern.h"

namespace sparseloom::kernels::cuda {

/// Some elements are infinite, zero in the planes: of three parts multiplied by three, Inf * 0 would be NaN.
inline constexpr std::int32_t kHasInfinity = 1;
/// All zero in the planes: the largest magnitude is below 2^-100, where bf16's least denormal, 2^-133, would
/// cut off bits.
inline constexpr std::int32_t kTiny = 3;

inline std::size_t split_planes_bytes(std::int64_t blocks, BlockShape block) {
  return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(block.rows) *
         static_cast<std::size_t>(block.cols) * 6;
}
inline std::size_t split_bytes(std::int64_t blocks, BlockShape block) {
  return split_planes_bytes(blocks, block) + static_cast<std::size_t>(blocks) * sizeof(std::int32_t);
}
/// The planes lie before them.
inline const std::int32_t* split_kinds(const std::byte* workspace, std::int64_t blocks, BlockShape block) {
  return reinterpret_cast<const std::int32_t*>(workspace + split_planes_bytes(blocks, block));
}

/// Block i of the planes <- values[i] [block.rows, block.cols], lines being rows; or, where slot is given,
/// the transpose of values[slot[i]], lines being columns. fp32, sides 32, 64 or 128. One launch. workspace:
/// split_bytes, 16-byte aligned.
cudaError_t split_blocks(std::byte* workspace, const float* values, const std::int32_t* slot,
                         std::int64_t blocks, BlockShape block, cudaStream_t stream) noexcept;

}  // namespace sparseloom::kernels::cuda
