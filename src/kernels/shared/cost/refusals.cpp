// The texts of refusals that the rows of several methods share.
#include "kernels/shared/cost/refusals.h"

#include <algorithm>

namespace sparseloom::kernels::cuda {
namespace {

constexpr std::int64_t kCounted = std::int64_t{1} << 31;

}  // namespace

Refusal refuse_other_than_hopper(const plan::Machine& machine) {
  if (machine.cuda.sm == 90) return {};
  return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
}

Refusal refuse_other_than_16_bits(const Problem& p) {
  if (size_of(p.dtype) == 2) return {};
  return {"multiplies f16 and bf16 only, the dtype is {}", name_of(p.dtype)};
}

Refusal refuse_empty_or_huge(const Problem& p) {
  if (p.blocks == 0) return "reads the stored blocks by TMA, and no block is stored";
  const std::int64_t most = std::max({p.m, p.rows, p.cols, p.blocks * std::max(p.block.rows, p.block.cols)});
  if (most >= kCounted)
    return {"counts tokens, rows, columns and rows of all blocks in 31 bits, and there are {}", most};
  return {};
}

Refusal refuse_too_many_tiles(std::int64_t m, std::int64_t outputs, int tile_tokens, int tile_outputs) {
  const std::int64_t tiles =
      ((m + tile_tokens - 1) / tile_tokens) * ((outputs + tile_outputs - 1) / tile_outputs);
  if (tiles < kCounted) return {};
  return {"counts its tiles in 31 bits, and there are {}", tiles};
}

Refusal refuse_unasked_tf32(const Problem& p) {
  if (p.dtype != DType::f32 || p.tf32) return {};
  return "would round f32 operands to TF32, which torch.backends.cuda.matmul.allow_tf32 (or Problem::tf32) "
         "does not allow";
}

Refusal refuse_16_bit_forward(const Problem& p, const plan::Machine& machine) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.direction == Direction::dw) return "supports forward and dx only";
  return refuse_other_than_16_bits(p);
}

}  // namespace sparseloom::kernels::cuda
