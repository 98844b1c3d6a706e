// The row of sm80_ffma for f32. f8/row.cpp has that for f8e4m3.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/ffma/dw_cut.h"
#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/bsr_linear/sm80/ffma/forward_shape.h"
#include "kernels/bsr_linear/sm80/ffma/row_parts.h"
#include "kernels/bsr_linear/sm80/mma/dw/row_parts.h"
#include "kernels/shared/cost/cost_terms.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

Refusal refusal(const Problem& p) {
  if (p.dtype != DType::f32)
    return {"multiplies f32 and float8_e4m3fn only, the dtype is {}", name_of(p.dtype)};
  return {};
}

ffma::DwCut cut_of_product(const Problem& p, int multiprocessors) {
  return ffma::cut_tokens(p.m, (p.rows + p.block.rows - 1) / p.block.rows, p.block, p.blocks,
                          multiprocessors);
}

// f32, fitted to the sweeps of an H200 whose seeds docs/log names (2026-11-25); forward, then
// dX.
struct Fit {
  double start_us, idle_outputs;  // idle_outputs: cost of a narrow tile's loads, in outputs
  double flops, chain;            // 1e12 per second; ns per position of the longest block row
  double streams, ragged;         // share of DRAM bytes not overlapped; cost of misaligned rows
};
constexpr Fit kForward{2.79, 11.2, 56.5, 31.9, 1.39, 0.24}, kDx{3.76, 14.4, 48, 27.9, 0.54, 0.62};

double forward_us(const Problem& p, const Device& device) {
  const Work w = work_of(p);
  const Fit& fit = p.direction == Direction::dx ? kDx : kForward;
  const double side = std::min(w.side, 64.0), tiles = std::ceil(w.m / 64) * std::ceil(w.out / side);
  const double flops = 2 * tiles * 64 * (side + fit.idle_outputs) * w.mean;
  return fit.start_us + fit.streams * stream_us(p, device) +
         (w.ragged ? 1 + fit.ragged : 1) *
             (chain_us(fit.chain * w.longest, device) + rate_us(flops, fit.flops, device));
}

// dW: the time of an item per token, in ns, and the rate of the products of all items.
constexpr double kDwStartUs = 4.1, kDwTokenNs = 50, kDwFlops = 43.3, kDwRagged = 0.54, kDwStores = 1.43,
                 kDwItemUs = 0.19;

double dw_us(const Problem& p, const Device& device) {
  const Work w = work_of(p);
  const ffma::DwCut cut = cut_of_product(p, device.multiprocessors);
  const double blocks = static_cast<double>(p.blocks);
  const double items =
      std::min(blocks, blocks * w.gathered / ffma::kDwColumns + std::min(w.block_rows, blocks) / 2) *
      cut.parts;
  const double chain = kDwTokenNs * static_cast<double>(std::min(p.m, cut.piece_tokens));
  const double flops = 2 * w.m * items * ffma::kDwColumns * ffma::dw_rows(p.block.rows);
  return kDwStartUs + kDwStores * us(memory_seconds(bytes_of(p).stored, device)) +
         kDwItemUs * items / device.multiprocessors +
         (w.ragged ? 1 + kDwRagged : 1) * (chain_us(chain, device) + rate_us(flops, kDwFlops, device));
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  if (p.blocks == 0) return kLaunchUs;
  return p.direction == Direction::dw ? dw_us(p, device) : forward_us(p, device);
}

/// The schedule of the fp32 kernels: the tile, and split-K of dW. Empty if no block of dW is stored.
Schedule schedule_of(const Problem& p, int multiprocessors) {
  Schedule schedule;
  if (p.direction != Direction::dw) {
    const bool dx = p.direction == Direction::dx;
    const ffma::ForwardExtent tile = ffma::extent(
        ffma::choose_forward(dx ? p.block.cols : p.block.rows, p.m, dx ? p.cols : p.rows, multiprocessors));
    schedule.tile_m = tile.tokens, schedule.tile_n = tile.outputs;
  } else if (p.blocks > 0) {
    schedule.tile_m = ffma::dw_rows(p.block.rows), schedule.tile_n = ffma::kDwColumns;
    schedule.tile_k = ffma::kDwTokens;
    schedule.split_k = cut_of_product(p, multiprocessors).pieces;
  }
  return schedule;
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p)) return why;
  const Schedule schedule = schedule_of(p, machine.cuda.multiprocessors);
  out.add({schedule, predict_us(p, machine), dw_pieces::partial_bytes(p, schedule)});
  return {};
}

int launch(const MatmulArgs& args, const Schedule& schedule, const Executor&) {
  return args.direction == Direction::dw ? sm80_ffma_dw(args, schedule) : sm80_ffma_forward(args, schedule);
}

}  // namespace

Kernel sm80_ffma_row() {
  Kernel row = cuda_row("sm80_ffma", propose, launch);
  row.traits.follows_index = true;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
