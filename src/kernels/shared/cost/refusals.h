// Refusals that the rows of several methods share. Each returns the reason, or nothing if it has none.
#pragma once

#include <cstdint>

#include "plan/machine.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom::kernels::cuda {

Refusal refuse_other_than_hopper(const plan::Machine& machine);
Refusal refuse_other_than_16_bits(const Problem& problem);
/// For the Hopper kernels, whose tensor maps do not support empty matrices and count rows and columns in 31
/// bits.
Refusal refuse_empty_or_huge(const Problem& problem);
/// For kernels that count their tiles of tokens x outputs in 31 bits.
Refusal refuse_too_many_tiles(std::int64_t m, std::int64_t outputs, int tile_tokens, int tile_outputs);
/// For kernels that read f32 operands as TF32.
Refusal refuse_unasked_tf32(const Problem& problem);
/// For the Hopper kernels for forward and dX of 16-bit types.
Refusal refuse_16_bit_forward(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::cuda
