// The row of sm80_decode_staged.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/row_parts.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Fitted to the sweeps of an H200 whose seeds docs/performance_log.md names (2026-11-25): the start, ns for
// each byte of X, the share of the memory's nominal rate, ns for each position of the longest block row, and
// 1e12 bytes per second of the tokens that every block row gathers.
constexpr double kStartUs = 3.84, kXNs = 0.0245, kStream = 0.64, kChainNs = 0.354, kGather = 6.26;

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_decode(p, machine)) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (std::max(p.block.rows, p.block.cols) > kStagedBlock)
    return {"takes blocks of at most {} on each side, the block is {}x{}", kStagedBlock, p.block.rows,
            p.block.cols};
  if (p.cols > kStagedColumns) return {"takes at most {} columns, there are {}", kStagedColumns, p.cols};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const Work w = work_of(p);
  const double tokens = std::ceil(w.m / 8) * 8;
  const double gathered = static_cast<double>(p.blocks) * w.gathered * tokens * w.size;
  return kStartUs + chain_us(kXNs * tokens * w.depth * w.size + kChainNs * w.longest, device) +
         std::max(us(memory_seconds(bytes_of(p).stored, device)) / kStream,
                  rate_us(gathered, kGather, device));
}

// Strips of 16 outputs, or of 8 if these would not give (nearly) every multiprocessor a thread block when k
// is split over a cluster. Narrow strips load more of X per byte of W.
Schedule schedule_of(const Problem& p, const Machine& machine) {
  const int split = machine.cuda.sm >= 90 ? 4 : 1;
  const bool few = (p.rows + 15) / 16 * split * 10 < std::int64_t{9} * machine.cuda.multiprocessors;
  Schedule schedule;
  schedule.tile_m = p.m <= 16 ? 16 : p.m <= 32 ? 32 : 64;
  schedule.tile_n = p.block.rows == 8 || few ? 8 : 16;
  return schedule;
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  out.add({schedule_of(p, machine), predict_us(p, machine), 0});
  return {};
}

}  // namespace

Kernel sm80_decode_staged_row() {
  Kernel row = cuda_row("sm80_decode_staged", propose,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm80_decode_staged(args, schedule);
                        });
  row.traits.needs_aligned = inputs_aligned;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
