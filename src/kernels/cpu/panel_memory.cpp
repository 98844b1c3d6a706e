#include "kernels/cpu/panel_memory.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cpu/cell.h"
#include "kernels/cpu/claims.h"
#include "kernels/cpu/panel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

// The packed input of one chunk of tokens: half an L3 of the smallest machines in mind, and bounded for any
// number of tokens. As much again for the sums between slabs.
constexpr std::int64_t kChunkBytes = 16 << 20;

// A panel of 48 tokens x 4096 features is 786 KB, and weights on their way through the same L2 come and go at
// L3's pace: 9 % of a forward product of fp32 and 20 to 30 % of dx at density .5 (the same with its weights
// in L1, Zen 5, blocks of 32 to 128). By slabs of 1024 steps four panels fit where one did, and each strip of
// weights is fetched for four. Sums pass through memory between slabs, 3 KB for each strip and panel; where a
// strip's weights are few, that is what was saved: at .2 (26 KB) nothing won or lost, at .5 (65 KB) dx takes
// .77 to .91 and forward .85 to 1.0 of its time, at .8 forward .85 to .96.
constexpr std::int64_t kSlabSteps = 1024, kSlabStripBytes = 40 << 10;

std::int64_t slabs_of(const PanelOps& ops, const PanelMemory& memory, const Problem& p,
                      std::int64_t output_block, std::int64_t outputs) {
  if (p.m <= kMaxVectors * ops.lanes) return 1;  // a single panel: its weights are read once anyway
  if (ops.depth_step > 1) return 1;  // half the bytes: in slabs bf16 takes 1.04 to 1.2 of its time at .8
  // Blocks of 8, forward: a strip is a block row, which the hardware's prefetchers follow from end to end;
  // cut up it takes 1.06 at .5, 1.01 at .8.
  if (p.direction == Direction::forward && output_block == kGroup) return 1;
  const std::int64_t bytes =
      p.blocks * p.block.rows * p.block.cols * static_cast<std::int64_t>(size_of(p.dtype));
  return bytes / std::max<std::int64_t>(1, outputs / kGroup) < kSlabStripBytes
             ? 1
             : ceil_div(memory.steps, kSlabSteps);
}

}  // namespace

std::int64_t even_chunk(std::int64_t total, std::int64_t fit) {
  if (total <= fit) return total;
  return fit < kMaxVectors ? fit
                           : std::min(fit / kMaxVectors * kMaxVectors,
                                      round_up(ceil_div(total, ceil_div(total, fit)), kMaxVectors));
}

PanelMemory::PanelMemory(const PanelOps& ops, const Problem& p) {
  const bool forward = p.direction == Direction::forward;
  const std::int64_t depth_block = forward ? p.block.cols : p.block.rows,
                     output_block = forward ? p.block.rows : p.block.cols;
  const std::int64_t outputs = round_up(forward ? p.rows : p.cols, output_block);
  steps = round_up(forward ? p.cols : p.rows, depth_block) / ops.depth_step;
  slabs = slabs_of(ops, *this, p, output_block, outputs);
  const std::int64_t vector_bytes = ops.lanes * kCellBytes;  // of one step, or one output
  panel_bytes = kMaxVectors * ceil_div(steps, slabs) * vector_bytes;
  const std::int64_t longest = std::max({std::int64_t{1}, steps, slabs > 1 ? outputs : 0});
  vectors =
      even_chunk(ceil_div(p.m, ops.lanes), std::max<std::int64_t>(1, kChunkBytes / (longest * vector_bytes)));

  std::int64_t end = 0;
  const auto place = [&](std::int64_t size) {
    const std::int64_t at = end;
    end += round_up(size, kAlign);
    return at;
  };
  constexpr std::int64_t kIndexBytes = sizeof(std::int32_t);
  place(vectors * steps * vector_bytes);
  claims = place(ceil_div(vectors, kMaxVectors) * static_cast<std::int64_t>(sizeof(Claims)));
  if (slabs > 1)
    sums = place(vectors * outputs * vector_bytes),
    cuts = place((slabs + 1) * outputs / output_block * kIndexBytes);
  if (ops.sum_rows != nullptr) row_sums = place(outputs * kIndexBytes);
  if (!forward && ops.transpose != nullptr) cells = place(p.blocks * p.block.rows * p.block.cols * 2);
  bytes = static_cast<std::size_t>(end);
}

}  // namespace sparseloom::kernels::cpu
