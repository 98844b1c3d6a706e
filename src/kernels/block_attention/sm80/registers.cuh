// Operands in registers, and the tokens of steps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention::sm80 {

/// The operand a of mma.sync, of 16 columns each, from sums in registers.
template <class Element, int kSums>
__device__ __forceinline__ void to_operand(std::uint32_t (&operand)[kSums / 8][4],
                                           const float (&sums)[kSums]) {
#pragma unroll
  for (int k = 0; k < kSums / 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) operand[k][i] = Element::pair(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1]);
}

/// The first key of a list's unit of 64, and kPartial.
__device__ __forceinline__ std::int32_t unit_token(const std::int32_t* entries, int block, int unit) {
  constexpr std::int32_t kPartial = block_attention::Lists::kPartial;
  const int halves = block / 64;
  const std::int32_t entry = entries[unit / halves], partial = entry & kPartial;
  return ((entry ^ partial) * block + unit % halves * 64) | partial;
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
