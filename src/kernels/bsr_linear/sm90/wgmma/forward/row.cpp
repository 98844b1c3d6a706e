// The rows of sm90_wgmma and sm90_wgmma_narrow: forward and dX by wgmma/forward, dW by wgmma/dw and
// wgmma/dw_regions; and the rows for 8-bit operands, whose forward runs wgmma/forward.
#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

const wgmma::dw::StepShape& dw_step(const Problem& p) {
  return p.dtype == DType::f32 ? wgmma::dw::kStepTf32 : wgmma::dw::kStep16;
}

wgmma::dw::Way dw_way(const Problem& p, const Machine& machine, bool narrow) {
  return wgmma::dw::way_of(p, dw_step(p), machine.cuda.multiprocessors, narrow);
}

Refusal refuse_small_blocks(const CommonProblem& p, int least) {
  if (std::min(p.block.rows, p.block.cols) >= least) return {};
  return {"needs blocks of {} or more on both sides, the block is {}x{}", least, p.block.rows, p.block.cols};
}

/// The refusals of both rows; sizes are in the tiles of `narrow`.
Refusal refusal_of_both(const Problem& p, const Machine& machine, bool narrow) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.direction == Direction::dw && p.m == 0) return "reads tokens by TMA, and the call has none";
  if (p.direction == Direction::dw && size_of(p.dtype) == 2) {
    if (dw_way(p, machine, false).exists()) return {};
    return {
        "supports dw of blocks of 32 or more on both sides, and of 16 and 32 where block rows x cols / 384 "
        "stay below 12288, with block rows of 16 x cols / 768; the block is {}x{}, the matrix {} x {}",
        p.block.rows, p.block.cols, p.rows, p.cols};
  }
  if (const Refusal why = refuse_small_blocks(p, 32)) return why;
  if (p.direction == Direction::dw) return {};
  return wgmma::forward::refuse_tiles(p, narrow ? wgmma::forward::kNarrowTile : wgmma::forward::kWideTile);
}

Refusal refuse_narrow(const Problem& p, const Machine& machine) {
  if (const Refusal why = refusal_of_both(p, machine, true); why || p.direction != Direction::dw) return why;
  if (size_of(p.dtype) != 2) return {"supports dw of f16 and bf16 only, the dtype is {}", name_of(p.dtype)};
  if (!dw_way(p, machine, true).exists())
    return {"halves the work items of dw, which then hold no block of {}x{}", p.block.rows, p.block.cols};
  return {};
}

// dX of TF32 reads transposed blocks, which a separate pass writes.
std::size_t transposed_bytes(const Problem& p) {
  if (p.direction != Direction::dx || p.dtype != DType::f32) return 0;
  return static_cast<std::size_t>(p.blocks) * static_cast<std::size_t>(p.block.rows) *
         static_cast<std::size_t>(p.block.cols) * sizeof(float);
}

// The product of both weights one above the other, which has the kernel's tiles, bytes and operations; only
// its outputs are twice as wide.
Problem stacked(const Problem& p) {
  Problem both = p;
  both.glu = false;
  both.rows = 2 * ((p.rows + p.block.rows - 1) / p.block.rows * p.block.rows);
  both.blocks = p.blocks + p.factor_blocks;
  return both;
}

template <bool kNarrow>
Refusal propose_glu(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (size_of(p.dtype) != 2)
    return {"computes a glu of f16 and bf16 only, the dtype is {}", name_of(p.dtype)};
  constexpr int kWidest = kNarrow ? 32 : 64;
  if (p.block.rows > kWidest)
    return {"has the block rows of both weights in one tile, at most {} wide, and they are {}", kWidest,
            p.block.rows};
  if (p.blocks == 0 || p.factor_blocks == 0) return "needs a stored block in both weights";
  const Problem both = stacked(p);
  if (const Refusal why = refusal_of_both(both, machine, kNarrow)) return why;
  Schedule schedule = wgmma::forward::schedule_of(
      both, machine, kNarrow ? wgmma::forward::kNarrowTile : wgmma::forward::kWideTile);
  schedule.groups = {0};  // pairs of block rows keep their places
  schedule.stores_at_end = false;
  out.add({schedule, wgmma::forward::predict_us(both, machine, kNarrow), 0});
  return {};
}

template <bool kNarrow>
Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (p.glu) return propose_glu<kNarrow>(p, machine, out);
  if (const Refusal why = kNarrow ? refuse_narrow(p, machine) : refusal_of_both(p, machine, false))
    return why;
  const double predicted_us = wgmma::forward::predict_us(p, machine, kNarrow);
  if (p.direction == Direction::dw) {
    const wgmma::dw::StepShape& step = dw_step(p);
    const wgmma::dw::Way way = dw_way(p, machine, kNarrow);
    out.add({wgmma::dw::schedule_of(p, step, way), predicted_us,
             wgmma::dw::workspace_of(p, step, machine.cuda.multiprocessors, way)});
    return {};
  }
  out.add({wgmma::forward::schedule_of(p, machine,
                                       kNarrow ? wgmma::forward::kNarrowTile : wgmma::forward::kWideTile),
           predicted_us, transposed_bytes(p)});
  return {};
}

int launch(const MatmulArgs& args, const Schedule& schedule, const Executor&) {
  return args.direction == Direction::dw ? sm90_wgmma_dw(args, schedule) : sm90_wgmma_forward(args, schedule);
}

template <bool kNarrow>
Kernel row(const char* name) {
  Kernel kernel = cuda_row(name, propose<kNarrow>, launch);
  // A pass prepares f32 operands of dW and accepts any alignment.
  kernel.traits.needs_aligned = [](const Problem& p) {
    return p.direction != Direction::dw || p.dtype != DType::f32 ? Aligned::all : Aligned::none;
  };
  kernel.traits.stores_pre = true;
  kernel.traits.glu = true;
  kernel.traits.adds_f32_residual = false;
  kernel.traits.follows_index = true;
  return kernel;
}

template <bool kNarrow>
Refusal propose_scaled(const ScaledProblem& p, const Machine& machine, Proposals<Scaled>& out) {
  constexpr wgmma::forward::TileShape kTile =
      kNarrow ? wgmma::forward::kNarrowTile : wgmma::forward::kWideTile;
  const Problem same = forward_of(p);
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.dtype == DType::i8) return "multiplies f16, bf16, float8_e4m3fn and TF32 only, the dtype is int8";
  if (const Refusal why = refuse_empty_or_huge(same)) return why;
  // Rows of 32 bytes run at a third of the copy engine's rate.
  if (const Refusal why = refuse_small_blocks(p, 64)) return why;
  if (const Refusal why = wgmma::forward::refuse_tiles(same, kTile)) return why;
  const double us = wgmma::forward::predict_32_and_8_bit_us(
      same, Device(machine), kNarrow, static_cast<double>(size_of(p.out)), !p.fast_accum);
  out.add({wgmma::forward::scaled_schedule_of(p, machine, kTile), us, 0});
  return {};
}

template <bool kNarrow>
ScaledKernel scaled_row_of(const char* name) {
  ScaledKernel kernel = scaled_row(name, propose_scaled<kNarrow>, launch);
  kernel.traits.needs_aligned = [](const ScaledProblem&) { return Aligned::all; };
  return kernel;
}

}  // namespace

namespace wgmma::forward {

// With an order of block rows, outputs are counted in whole block rows.
Refusal refuse_tiles(const Problem& p, const TileShape& tile) {
  const bool dx = p.direction == Direction::dx;
  const std::int64_t outputs = dx ? p.cols : p.rows, side = dx ? p.block.cols : p.block.rows;
  return refuse_too_many_tiles(p.m, (outputs + side - 1) / side * side, tile.tokens, tile.outputs);
}

double predict_us(const Problem& p, const plan::Machine& machine, bool narrow) {
  const Device device(machine);
  if (p.direction != Direction::dw)
    return size_of(p.dtype) == 2 ? predict_16_bit_us(p, device, narrow)
                                 : predict_32_and_8_bit_us(p, device, narrow, 4.0, false);
  return wgmma::dw::predict_us(p, device, dw_step(p), narrow);
}

}  // namespace wgmma::forward

Kernel sm90_wgmma_row() { return row<false>("sm90_wgmma"); }
Kernel sm90_wgmma_narrow_row() { return row<true>("sm90_wgmma_narrow"); }
ScaledKernel sm90_wgmma_scaled_row() { return scaled_row_of<false>("sm90_wgmma"); }
ScaledKernel sm90_wgmma_narrow_scaled_row() { return scaled_row_of<true>("sm90_wgmma_narrow"); }

}  // namespace sparseloom::kernels::cuda

#endif
