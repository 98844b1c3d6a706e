// The rows that merge small blocks: sm90_wgmma_merged, whose units wgmma/forward multiplies, and
// sm90_mma_merged, whose units ../../mma multiplies. Predictions count the units as if blocks lay at random
// or in a band.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/mma/entry.h"
#include "kernels/bsr_linear/sm90/mma/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/merged/merge_blocks.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Merging finds the units by three dependent reads of the index.
constexpr double kMergeUs = 3;

constexpr const char* kMmaCaveat =
    "blocks are merged into units of 16 in every call, zeros between, so a NaN in x spreads to the outputs "
    "of the units above it";
constexpr const char* kWgmmaCaveat =
    "blocks are merged into units of 32 in every call, zeros between, so a NaN in x spreads to the outputs "
    "of the units above it";

/// The problem of the product over the expected number of units.
Problem merged(const Problem& p, std::int32_t least) {
  const Merging merging(p.direction, p.rows, p.cols, p.block, least);
  Problem units = p;
  units.block = merging.unit;
  units.blocks = static_cast<std::int64_t>(merging.likely_units(p.blocks));
  return units;
}

/// Refusals of kernels that merge blocks into units, where a block side is below `least`.
Refusal refuse_merging(const Problem& p, std::int32_t least) {
  if (p.strict) return "strict forbids multiplying what x holds under absent blocks";
  if (!Merging(p.direction, p.rows, p.cols, p.block, least).possible())
    return {"keeps a table of a row's blocks in shared memory, which {} x {} in blocks of {}x{} do not fit",
            p.rows, p.cols, p.block.rows, p.block.cols};
  return refuse_empty_or_huge(p);
}

Refusal refuse_for_wgmma(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_16_bit_forward(p, machine)) return why;
  if (std::min(p.block.rows, p.block.cols) >= Merging::kWgmmaLeast)
    return {"merges blocks with a side below 32, the block is {}x{}", p.block.rows, p.block.cols};
  if (const Refusal why = refuse_merging(p, Merging::kWgmmaLeast)) return why;
  return wgmma::forward::refuse_tiles(merged(p, Merging::kWgmmaLeast), wgmma::forward::kWideTile);
}

Refusal refuse_for_mma(const Problem& p, const Machine& machine) {
  const int least = std::min(p.block.rows, p.block.cols), most = std::max(p.block.rows, p.block.cols);
  if (least >= Merging::kMmaLeast || most > Merging::kMmaLeast)
    return {"merges blocks of 8 and 16, with an 8 on one side or both, the block is {}x{}", p.block.rows,
            p.block.cols};
  if (const Refusal why = sm90_mma::refusal_of_shape(merged(p, Merging::kMmaLeast), machine)) return why;
  return refuse_merging(p, Merging::kMmaLeast);
}

// The units are written once, from blocks read once, and are read back while they are in L2.
double predict_merging_us(const Problem& blocks, const Problem& units, const Machine& machine) {
  const Device device(machine);
  return kLaunchUs + kMergeUs + us(memory_seconds(bytes_of(blocks).stored + bytes_of(units).stored, device));
}

double predict_for_mma_us(const Problem& p, const Machine& machine) {
  const Problem units = merged(p, Merging::kMmaLeast);
  return predict_merging_us(p, units, machine) + sm90_mma::predict_us(units, machine);
}

std::size_t workspace_bytes(const Problem& p, std::int32_t least) {
  return Merging(p.direction, p.rows, p.cols, p.block, least).workspace_bytes();
}

Refusal propose_for_wgmma(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_for_wgmma(p, machine)) return why;
  // The workspace has room for all units, and the instance is chosen for all if none is expected.
  Problem units = merged(p, Merging::kWgmmaLeast);
  if (units.blocks == 0) units.blocks = wgmma::forward::cells_of(units);
  Schedule schedule = wgmma::forward::schedule_of(units, machine, wgmma::forward::kWideTile);
  const Merging merging(p.direction, p.rows, p.cols, p.block, Merging::kWgmmaLeast);
  const bool dx = p.direction == Direction::dx;
  schedule.groups.fold = dx ? merging.blocks_over() : merging.blocks_down();
  schedule.groups.span *= dx ? merging.blocks_down() : merging.blocks_over();
  out.add(
      {schedule, wgmma::forward::predict_us(p, machine, false), workspace_bytes(p, Merging::kWgmmaLeast)});
  return {};
}

Refusal propose_for_mma(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_for_mma(p, machine)) return why;
  out.add({sm90_mma::schedule_of(merged(p, Merging::kMmaLeast), machine), predict_for_mma_us(p, machine),
           workspace_bytes(p, Merging::kMmaLeast)});
  return {};
}

}  // namespace

Kernel sm90_wgmma_merged_row() {
  Kernel row = cuda_row("sm90_wgmma_merged", propose_for_wgmma,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm90_wgmma_merged(args, schedule);
                        });
  row.caveat = kWgmmaCaveat;
  row.traits.needs_aligned = all_aligned;
  row.traits.follows_index = true;
  row.traits.stores_pre = true;
  return row;
}

Kernel sm90_mma_merged_row() {
  Kernel row = cuda_row("sm90_mma_merged", propose_for_mma,
                        [](const MatmulArgs& args, const Schedule& schedule, const Executor&) {
                          return sm90_mma_merged(args, schedule);
                        });
  row.caveat = kMmaCaveat;
  row.traits.needs_aligned = all_aligned;
  row.traits.follows_index = true;
  row.traits.stores_pre = true;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
