// How a call of the panel kernels is cut into slabs of depth and chunks of tokens, and where each part lies
// in the workspace: the plan reserves what the run lays out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

struct PanelOps;

/// Vectors of tokens in one chunk of at most `fit` of `total`: as even as whole panels allow, so that none is
/// a single slow vector.
std::int64_t even_chunk(std::int64_t total, std::int64_t fit);

/// Of a forward or dx call. The panels of a chunk of tokens lie at the workspace's begin, [vectors][steps]
/// cells of a vector; offsets are bytes.
struct PanelMemory {
  PanelMemory(const PanelOps& ops, const Problem& problem);

  std::int64_t steps = 0;    // of depth, padded to whole blocks
  std::int64_t vectors = 0;  // of tokens that there is room for at a time
  std::int64_t slabs =
      1;  // of depth, multiplied one after the other: a function of the problem alone, since sums round
  std::int64_t panel_bytes = 0;  // of one slab of the widest panel: what should stay in L2
  std::int64_t sums =
      0;  // [tokens of the chunk] x [outputs, padded to whole blocks], fp32, from slab to slab
  std::int64_t cuts = 0;      // int32 [slabs + 1][output blocks], where the slabs' parts of each list begin
  std::int64_t row_sums = 0;  // int32 [outputs, padded to whole blocks], of 8-bit products
  std::int64_t claims = 0;    // Claims [panels], of each group of them
  std::int64_t cells = 0;     // dx of 16-bit dots: transposed blocks
  std::size_t bytes = 0;
};

}  // namespace sparseloom::kernels::cpu
