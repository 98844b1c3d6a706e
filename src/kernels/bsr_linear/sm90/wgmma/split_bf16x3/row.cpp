// The rows of sm90_split and sm90_split_narrow.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

// These need CUDA's headers, which a CPU build may not have.
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/blocks.h"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/tokens.h"

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

template <bool kNarrow>
constexpr wgmma::forward::TileShape kTile =
    kNarrow ? wgmma::forward::kNarrowBf16x3Tile : wgmma::forward::kBf16x3Tile;

template <bool kNarrow>
Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.dtype != DType::f32) return {"multiplies f32 only, the dtype is {}", name_of(p.dtype)};
  if (std::min(p.block.rows, p.block.cols) < 32)
    return {"needs blocks of 32 or more on both sides, the block is {}x{}", p.block.rows, p.block.cols};
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.direction != Direction::dw) return wgmma::forward::refuse_tiles(p, kTile<kNarrow>);
  if (kNarrow) return "supports forward and dx only";
  if (p.m == 0) return "reads tokens by TMA, and the call has none";
  if (Bf16x3Tokens{p.rows, p.m}.rows() >= std::int64_t{1} << 31)  // TMA's coordinates have 31 bits
    return {"counts the rows of three bf16 planes in 31 bits, for {} tokens", p.m};
  return {};
}

// Fitted to the sweeps of an H200 whose seeds docs/log names (2026-11-25).
struct Fit {
  double start_us, round_us;
  double chain;             // ns per step of the tile that ends last,
  double step, step_row;    // and per step and block row of all tiles, whose waits overlap
  double flops, slices;     // 1e12 useful flops per second; cost of blocks of 32 outputs
  double splitting, block;  // splitting W into planes: a factor for its bytes, and ns per value of a block
  double streams;           // share of DRAM bytes not overlapped by the products
};
// Wide tiles, then narrow; forward, then dX.
constexpr Fit kFits[2][2] = {{{3.7, 1.74, 714, 290, 50, 121, 0.364, 1.91, 2.08, 0.06},
                              {3.8, 2.22, 636, 307, 51, 118.5, 0.42, 3.7, 1.94, 0}},
                             {{4.7, 0.885, 549, 300, 71.6, 95.5, 0.237, 1.69, 1.97, 0.064},
                              {4.9, 1.08, 502, 250, 45, 96.4, 0.326, 3.3, 1.87, 0}}};

// Tiles step through K tiles of 32 along the reduction. An fp32 product is six 16-bit products.
template <bool kNarrow>
double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  // dW adds a launch for the values that the bf16 planes cannot hold (tokens.h).
  if (p.direction == Direction::dw)
    return kLaunchUs + wgmma::dw::predict_us(p, device, wgmma::dw::kStepBf16x3, false);
  const Fit& fit = kFits[kNarrow][p.direction == Direction::dx];
  constexpr wgmma::forward::TileShape tile = kTile<kNarrow>;
  const Work w = work_of(p);
  const double rows = std::max(1.0, tile.outputs / w.side), k_tiles = std::ceil(w.depth / 32);
  const double steps = touched(w, w.density, rows);
  const double longest =
      w.banded ? steps : std::max(steps, 1 - std::pow(1 - w.density, rows - 1) * (1 - w.row_density));
  const double m_tiles = std::ceil(w.m / tile.tokens), tiles = m_tiles * std::ceil(w.out / tile.outputs);
  const double flops = 2 * m_tiles * tile.tokens * w.out * w.depth * w.density;
  const double products = rate_us(flops, fit.flops, device) * (w.side == 32 ? 1 + fit.slices : 1);
  const double tile_chain = k_tiles * steps * (fit.step + fit.step_row * rows);
  // A thread block of the splitting pass converts a whole block.
  const double splitting = chain_us(fit.block * w.side * w.gathered, device) +
                           fit.splitting * us(memory_seconds(bytes_of(p).stored, device));
  return fit.start_us + splitting + fit.round_us * std::ceil(tiles / device.multiprocessors) +
         chain_us(k_tiles * longest * fit.chain, device) +
         std::max(products, chain_us(tile_chain * tiles / device.multiprocessors, device)) +
         fit.streams * stream_us(p, device);
}

template <bool kNarrow>
Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal<kNarrow>(p, machine)) return why;
  const double predicted_us = predict_us<kNarrow>(p, machine);
  if (p.direction == Direction::dw) {
    const wgmma::dw::StepShape& step = wgmma::dw::kStepBf16x3;
    const int multiprocessors = machine.cuda.multiprocessors;
    const wgmma::dw::Way way = wgmma::dw::way_of(p, step, multiprocessors, false);
    out.add({wgmma::dw::schedule_of(p, step, way), predicted_us,
             wgmma::dw::workspace_of(p, step, multiprocessors, way)});
    return {};
  }
  out.add({wgmma::forward::schedule_of(p, machine, kTile<kNarrow>), predicted_us,
           bf16x3_bytes(p.blocks, p.block)});
  return {};
}

int launch(const MatmulArgs& args, const Schedule& schedule, const Executor&) {
  return args.direction == Direction::dw ? sm90_split_dw(args, schedule) : sm90_split_forward(args, schedule);
}

template <bool kNarrow>
Kernel row(const char* name) {
  Kernel kernel = cuda_row(name, propose<kNarrow>, launch);
  // A pass prepares both operands of dW and accepts any alignment.
  kernel.traits.needs_aligned = [](const Problem& p) {
    return p.direction != Direction::dw ? Aligned::all : Aligned::none;
  };
  kernel.traits.adds_f32_residual = false;
  kernel.traits.follows_index = true;  // nothing reads planes of absent blocks
  return kernel;
}

}  // namespace

Kernel sm90_split_row() { return row<false>("sm90_split"); }
Kernel sm90_split_narrow_row() { return row<true>("sm90_split_narrow"); }

}  // namespace sparseloom::kernels::cuda

#endif
