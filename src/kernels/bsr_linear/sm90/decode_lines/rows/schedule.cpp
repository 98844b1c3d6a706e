// Chooses between the methods rows and x_streamed, and divides the warps of a multiprocessor.
#include "kernels/bsr_linear/sm90/decode_lines/rows/schedule.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/x_streamed/entry.h"

namespace sparseloom::kernels::cuda::decode_lines::rows {
namespace {

using core::ceil_div;

/// pairs: clusters of two thread blocks that run at once.
Schedule x_streamed_schedule(std::int64_t block_rows, std::int64_t pairs) {
  const auto strips = static_cast<int>(x_streamed::strips_each(block_rows, pairs));
  const bool few = strips <= x_streamed::kFewWarps;
  Schedule schedule;
  schedule.method = Method::decode_x_streamed;
  schedule.tile_m = x_streamed::kTokens, schedule.tile_n = kSide;
  schedule.tile_k = kSide * (few ? x_streamed::kFewStageBlocks : x_streamed::kManyStageBlocks);
  schedule.cluster = 2, schedule.tiles_at_once = strips;
  schedule.warps = std::min((few ? x_streamed::kFewWarps : x_streamed::kMostStrips) / strips, 4);
  return schedule;
}

/// Divides all warps that fit on a multiprocessor among its strips. Each strip gets a thread block of its
/// own, which measured faster at low density than one thread block for all of them. The exception: if a
/// multiprocessor's registers hold more thread blocks than it should get, the thread blocks of the next
/// launch, which start while these leave, gather on the multiprocessors that have room first (measured
/// slower). If there are too many strips for two warps each, thread blocks of four warps run in several
/// waves.
void divide_warps(Schedule& schedule, std::int64_t strips, int multiprocessors, int most, int registers) {
  constexpr int kRegisters = 65536;
  const auto per_multiprocessor =
      static_cast<int>(std::min<std::int64_t>(ceil_div(strips, multiprocessors), most));
  schedule.tiles_at_once = 1, schedule.warps = 4;
  if (per_multiprocessor > most / 2) return;
  schedule.warps = most / per_multiprocessor;
  const int room = kRegisters / (registers * 32 * schedule.warps);
  if (room > per_multiprocessor) schedule.tiles_at_once = per_multiprocessor;
}

}  // namespace

Schedule schedule_of(const Problem& p, const plan::Machine& machine) {
  const int members = p.glu ? 2 : 1;
  const int multiprocessors = std::max(machine.cuda.multiprocessors, 1);
  const std::int64_t block_rows = ceil_div(p.rows, p.block.rows), pairs = multiprocessors / 2;
  const bool narrow = p.block.cols == 16, wide = p.block.cols > 32;
  if (narrow && !p.glu && x_streamed::passes(p.m, p.rows, p.cols, p.blocks, pairs))
    return x_streamed_schedule(block_rows, pairs);
  const int token_tiles = p.m <= 8 ? 1 : p.m <= 16 ? 2 : p.m <= 32 ? 4 : 8;
  Schedule schedule;
  schedule.method = Method::decode_rows;
  schedule.tile_m = 8 * token_tiles, schedule.tile_n = narrow ? 16 : 32;
  schedule.tile_k = narrow ? 16 : wide ? 64 : 32;
  const std::int64_t strips = members * block_rows * std::max(p.block.rows / 32, 1);
  const int most = warps_of(narrow, token_tiles);
  divide_warps(schedule, strips, multiprocessors, most, registers_of(narrow, wide, token_tiles));
  // A thread block has the gates and the factors of a strip, and no other.
  if (p.glu) schedule.tiles_at_once = members, schedule.warps = std::min(schedule.warps, most / members);
  return schedule;
}

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
