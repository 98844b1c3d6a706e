// Kernels of x86-64: one tile of queries, or of keys, at a time, with a lane for each.
#pragma once

#include <cstdint>

#include "kernels/block_attention/walk.h"
#include "kernels/runs.h"

namespace sparseloom::kernels::cpu {

/// Queries, or keys, of a tile: 64 divides every block. Keys, or queries, of a step: their scores against a
/// tile take 16 KB, which L1 holds beside what the products stream.
inline constexpr std::int64_t kTileQueries = 64, kStepKeys = 64;
/// The largest head size: a tile's queries and sums lie on the stack, 64 KB each.
inline constexpr std::int64_t kMostHeadDim = 256;

/// A tile: tokens [first, first + rows) of a block's sequence and head.
struct AttentionTile {
  const attention::Args& args;
  std::int64_t batch, head, block, first, rows;
};

/// The kernel of one instruction set and dtype.
struct AttentionOps {
  Runs* runs;
  void (*forward)(const AttentionTile& tile);
  void (*queries)(const AttentionTile& tile);  // backward: dq, and what `keys` needs in the workspace
  void (*keys)(const AttentionTile& tile);     // backward: dk and dv
};

/// Null for dtypes that they do not support.
const AttentionOps* attention_avx2(DType dtype) noexcept;
const AttentionOps* attention_avx512(DType dtype) noexcept;
/// The forward pass of bf16.
const AttentionOps& attention_amx() noexcept;

}  // namespace sparseloom::kernels::cpu
