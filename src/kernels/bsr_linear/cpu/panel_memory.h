// The division of a call of the panel kernels into K tiles and chunks of tokens, and the layout of its
// workspace. The plan and the run both compute it, so that the plan reserves what the run uses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

struct PanelOps;

/// Bytes of the packed input of one chunk of tokens, for any number of tokens: half of the smallest expected
/// L3. The partial sums between K tiles may take as much again.
inline constexpr std::int64_t kPanelChunkBytes = 16 << 20;

/// Vectors of tokens per chunk, if `fit` of `total` have room: chunks are as even as whole panels allow, so
/// that none is a single slow vector.
std::int64_t even_chunk(std::int64_t total, std::int64_t fit);

/// The workspace of a forward or dx call. It begins with the panels of a chunk of tokens, [vectors][steps]
/// cells of a vector. The other buffers are at the offsets below, in bytes; 0 if a call has none.
struct PanelMemory {
  PanelMemory(const PanelOps& ops, const Problem& problem, std::int64_t chunk_bytes = kPanelChunkBytes);

  std::int64_t steps = 0;    // steps of depth, padded to whole blocks
  std::int64_t vectors = 0;  // capacity of a chunk in vectors of tokens
  /// K tiles, multiplied one after the other. A function of the problem alone: if it depended on the number
  /// of threads, the rounding of sums would too.
  std::int64_t k_tiles = 1;
  std::int64_t panel_bytes = 0;  // bytes of one K tile of the widest panel, which should stay in L2
  /// fp32 [tokens of the chunk] x [outputs, padded to whole blocks]: partial sums passed between K tiles.
  std::int64_t sums = 0;
  std::int64_t cuts = 0;      // int32 [K tiles + 1][output blocks]: where each K tile begins in each list
  std::int64_t row_sums = 0;  // int32 [outputs, padded to whole blocks], for 8-bit products
  std::int64_t stages = 0;    // Stage [vectors of all tokens], one per group of panels
  std::int64_t cells = 0;     // dx by dot products of bf16 pairs: the transposed blocks
  std::size_t bytes = 0;      // bytes of the whole workspace
};

}  // namespace sparseloom::kernels::cpu
