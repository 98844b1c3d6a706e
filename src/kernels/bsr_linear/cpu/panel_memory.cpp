// Chooses the K tiles and chunks of a panel kernel's call, and lays out its workspace.
#include "kernels/bsr_linear/cpu/panel_memory.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/claims.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

// A panel of 48 tokens x 4096 features of fp32 is 786 KB. It fills most of an L2, so that weights are fetched
// from L3 for each panel. With K tiles of 1024 steps four panels fit instead of one, and each strip of
// weights is fetched once for four. In return the partial sums pass through memory between K tiles, 3 KB per
// strip and panel. If a strip has few weights that costs as much as it saves: measured on a Zen 5, 26 KB of
// weights per strip neither win nor lose, and 65 KB win. The log has the figures.
constexpr std::int64_t kKTileSteps = 1024, kKTileStripBytes = 40 << 10;

std::int64_t k_tiles_of(const PanelOps& ops, const PanelMemory& memory, const Problem& p,
                        std::int64_t output_block, std::int64_t outputs) {
  // A single panel reads its weights once anyway.
  if (p.m <= kMaxVectors * ops.lanes) return 1;
  // Dot products of pairs or quads read at most half the bytes: for bf16, K tiles measured slower.
  if (ops.depth_step > 1) return 1;
  // In forward with blocks of 8 rows a strip is a whole block row, which the hardware's prefetchers follow
  // from end to end. Cut into K tiles it measured slower.
  if (p.direction == Direction::forward && output_block == kGroup) return 1;
  const std::int64_t bytes =
      p.blocks * p.block.rows * p.block.cols * static_cast<std::int64_t>(size_of(p.dtype));
  return bytes / std::max<std::int64_t>(1, outputs / kGroup) < kKTileStripBytes
             ? 1
             : ceil_div(memory.steps, kKTileSteps);
}

}  // namespace

std::int64_t even_chunk(std::int64_t total, std::int64_t fit) {
  if (total <= fit) return total;
  return fit < kMaxVectors ? fit
                           : std::min(fit / kMaxVectors * kMaxVectors,
                                      round_up(ceil_div(total, ceil_div(total, fit)), kMaxVectors));
}

PanelMemory::PanelMemory(const PanelOps& ops, const Problem& p, std::int64_t chunk_bytes) {
  const bool forward = p.direction == Direction::forward;
  const std::int64_t depth_block = forward ? p.block.cols : p.block.rows,
                     output_block = forward ? p.block.rows : p.block.cols;
  const std::int64_t outputs = round_up(forward ? p.rows : p.cols, output_block);
  steps = round_up(forward ? p.cols : p.rows, depth_block) / ops.depth_step;
  k_tiles = k_tiles_of(ops, *this, p, output_block, outputs);
  const std::int64_t vector_bytes = ops.lanes * kCellBytes;  // bytes per step or output
  panel_bytes = kMaxVectors * ceil_div(steps, k_tiles) * vector_bytes;
  const std::int64_t longest = std::max({std::int64_t{1}, steps, k_tiles > 1 ? outputs : 0});
  vectors =
      even_chunk(ceil_div(p.m, ops.lanes), std::max<std::int64_t>(1, chunk_bytes / (longest * vector_bytes)));

  std::int64_t end = 0;
  const auto place = [&](std::int64_t size) {
    const std::int64_t at = end;
    end += round_up(size, kAlign);
    return at;
  };
  constexpr std::int64_t kIndexBytes = sizeof(std::int32_t);
  place(vectors * steps * vector_bytes);
  stages = place(ceil_div(p.m, ops.lanes) * static_cast<std::int64_t>(sizeof(Stage)));
  if (k_tiles > 1)
    sums = place(vectors * outputs * vector_bytes),
    cuts = place((k_tiles + 1) * outputs / output_block * kIndexBytes);
  if (ops.sum_rows != nullptr) row_sums = place(outputs * kIndexBytes);
  if (!forward && ops.transpose != nullptr) cells = place(p.blocks * p.block.rows * p.block.cols * 2);
  bytes = static_cast<std::size_t>(end);
}

}  // namespace sparseloom::kernels::cpu
