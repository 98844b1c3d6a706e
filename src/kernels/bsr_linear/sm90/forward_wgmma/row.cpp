// The rows of sm90_wgmma and sm90_wgmma_narrow: forward and dX by forward_wgmma, dW by dw_wgmma and
// dw_wgmma_regions; and those of 8-bit operands, forward by forward_wgmma.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/dw_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/dw_wgmma/predict.h"
#include "kernels/bsr_linear/sm90/dw_wgmma/row_parts.h"
#include "kernels/bsr_linear/sm90/forward_wgmma/row_parts.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// L2 to one multiprocessor of an H200, with one thread block and with two.
constexpr double kPortBytesPerClock[] = {43, 54};

const wgmma_sdd::StepShape& dw_step(const Problem& p) {
  return p.dtype == DType::f32 ? wgmma_sdd::kStepTf32 : wgmma_sdd::kStep16;
}

wgmma_sdd::Way dw_way(const Problem& p, const Machine& machine, bool narrow) {
  return wgmma_sdd::way_of(p, dw_step(p), machine.cuda.multiprocessors, narrow);
}

Refusal refuse_small_blocks(const CommonProblem& p, int least) {
  if (std::min(p.block.rows, p.block.cols) >= least) return {};
  return {"needs blocks of {} or more on both sides, the block is {}x{}", least, p.block.rows, p.block.cols};
}

/// What both rows refuse; sizes are in the tiles of `narrow`.
Refusal refusal_of_both(const Problem& p, const Machine& machine, bool narrow) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.direction == Direction::dw && p.m == 0) return "sums over tokens by TMA, and there are none";
  if (p.direction == Direction::dw && size_of(p.dtype) == 2) {
    if (dw_way(p, machine, false).exists()) return {};
    return {
        "does dw of blocks of 32 or more on both sides, and of 16 and 32 where block rows x cols / 384 stay "
        "below 12288, with block rows of 16 x cols / 768; the block is {}x{}, the matrix {} x {}",
        p.block.rows, p.block.cols, p.rows, p.cols};
  }
  if (const Refusal why = refuse_small_blocks(p, 32)) return why;
  if (p.direction == Direction::dw) return {};
  return wgmma_dds::refuse_tiles(p, narrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile);
}

Refusal refuse_narrow(const Problem& p, const Machine& machine) {
  if (const Refusal why = refusal_of_both(p, machine, true); why || p.direction != Direction::dw) return why;
  if (size_of(p.dtype) != 2) return {"does dw of f16 and bf16 only, the dtype is {}", name_of(p.dtype)};
  if (!dw_way(p, machine, true).exists())
    return {"does dw by items of half the size, which would hold no block of {}x{}", p.block.rows,
            p.block.cols};
  return {};
}

// For every group of block rows a tile reads those K tiles, 128 bytes along the reduction, in which the group
// stores anything. Blocks are assumed to lie at random. Reads from L2, products and reads from memory
// overlap. Serves f32 (TF32) and 8-bit operands. `out_size`: bytes of an output; `promotes`: 8-bit sums are
// added up in fp32.
double predict_dds_us(const Problem& p, const Device& device, bool narrow, double out_size, bool promotes) {
  const bool dx = p.direction == Direction::dx, f8 = p.dtype == DType::f8e4m3;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double size = static_cast<double>(size_of(p.dtype));
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  // 8-bit blocks of 64 have K tiles of 64 bytes, two to a step.
  const bool own = gathered * size == 64;
  const double row = own ? 64 : 128, k_tiles = std::ceil(depth * size / row);
  const wgmma_dds::TileShape tile = narrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile;
  const double m = static_cast<double>(p.m), tokens = tile.tokens, outputs = tile.outputs;
  const double density = static_cast<double>(p.blocks) / grid;
  // Similar block rows are multiplied together (plan/block_row_order.h). That saves less if most K tiles are
  // read in any case.
  const double at_random = 1 - std::pow(1 - density, std::max(1.0, outputs / side));
  const double touched =
      side < 128 && !promotes ? at_random * (1 - 0.14 * std::min(1.0, (1 - at_random) / 0.2)) : at_random;
  const double m_tiles = std::ceil(m / tokens), tiles = m_tiles * std::ceil(out / outputs);
  const Bytes bytes = bytes_of(p, out_size);
  const double reads = tiles * k_tiles * touched * tokens * row + m_tiles * bytes.stored;
  // The last round of wide tiles takes as long with half of the multiprocessors idle. The constant includes
  // the loss over 8 rounds.
  const double rounds = tiles / device.multiprocessors;
  const double last_round = narrow || rounds < 1 ? 1 : std::max(1.0, std::ceil(rounds) / rounds / 1.03);
  const double l2 =
      last_round * reads / ((own ? 0.87 : 1.0) * device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double product = useful_flops(p, m_tiles * tokens) / (kVendorShare * 0.95 * dense_peak(p, device));
  const double each = k_tiles * touched * std::ceil(tiles / ((narrow ? 2.0 : 1.0) * device.multiprocessors));
  // Few tiles leave multiprocessors idle, and each is limited by its own port to L2, through which a step
  // copies X and the blocks.
  const double turns = std::ceil(tiles / device.multiprocessors);
  const double copied = (tokens + outputs * std::min(1.0, density / touched)) * row;
  const double port =
      k_tiles * touched * turns * copied / (kPortBytesPerClock[narrow && turns > 1] * device.clock_hz);
  // A step's latency, with the test and wait of each block row. Promoted sums also pass through registers.
  const double block_rows = std::ceil(outputs / side);
  const double latency =
      (200 + (narrow ? 300 : 100) * block_rows) * (promotes ? 1.7 : 1.0) * (own ? 0.5 : 1.0);
  const double steps = each * (latency + 256.0 * (row / 128) * density / touched) / device.clock_hz;
  // Stores of 16-bit outputs overlap in part with the next tile's products, and deferred stores
  // (kDeferredStore) overlap more, but neither overlaps with reads from memory. Other outputs and narrow
  // tiles overlap with nothing.
  const double stores = memory_seconds(m * out * out_size, device),
               loads = memory_seconds(bytes.stored + m * depth * size, device);
  const bool wide_halves = f8 && !promotes && out_size == 2 && !narrow;
  const double behind = wide_halves ? 0.6 : 1.1;
  // Corrections fitted to measurements on an H200: slices of 32 lose to their many short wgmma if many blocks
  // are stored, tiles most of whose tokens are absent take twice the time of their bytes, and promoted sums
  // are added up in registers.
  const bool short_slice = std::min(side, gathered) == 32;
  const double short_slices = short_slice ? 1 + 0.45 * std::max(0.0, density - 0.15) : 1;
  const double empty_tiles = p.m <= 64 ? 2 : 1, promoted = promotes ? 1.07 : 1;
  // With swap-AB fewer steps wait, and each for less.
  const double swap_ab = wide_halves ? 0.95 : 1;
  // Two narrow tiles, of half a block row each, read the same X side by side.
  const double half_block_rows = narrow && side == 128 ? 0.87 : 1;
  // The first copies and the last stores of a thread block.
  const double ends = narrow ? 0.9 : 1.6;
  const double transposing =
      dx && p.dtype == DType::f32 ? kLaunchUs + us(2 * memory_seconds(bytes.stored, device)) : 0;
  const double products = short_slices * empty_tiles * promoted * swap_ab * half_block_rows *
                          std::max({l2, product, steps, port});
  // Narrow tiles read X for half as many outputs, which shows when memory is the limit.
  const double memory = 1.1 * stores + (narrow ? 1.05 : 1) * empty_tiles * loads;
  return kLaunchUs + ends + transposing + us(std::max(memory, behind * stores + products));
}

// 16-bit forward and dX, fitted to the sweeps of an H100 and an H200 whose seeds docs/performance_log.md
// names (2026-11-25).
struct Fit {
  double start_us, round_us;
  double chain, chain_row;  // ns of a step, and for each block row of the tile: of the tile that ends last,
  double step, step_row;    // and of all tiles, whose waits overlap
  double flops, slices;     // 1e12 per second; what blocks of 32 outputs add, with their short wgmmas
  double streams;           // bytes of the memory that the products do not hide
  double merge_us, merged;  // small blocks first: the launch, and their bytes and the units'
};
// Wide tiles, then narrow; forward, then dX.
constexpr Fit kFits[2][2] = {{{3.47, 1.22, 440, 0, 19.6, 13.7, 771, 0.265, 0.433, 4.5, 1.21},
                              {3.09, 1.33, 427, 3.78, 119, 55.9, 862, 0.331, 0.45, 4.36, 1.46}},
                             {{3.37, 0.139, 181, 24.9, 195, 0, 408, 0.043, 0.509, 3.86, 1.54},
                              {3.21, 0.239, 192, 12.1, 63.2, 78.9, 458, 0.076, 0.483, 3.93, 1.59}}};

// What copies take longer of which each row touches two lines of L2, in forward and dX: the same sweeps, and
// the group `masks` at 1000 x 3000 x 5000.
constexpr double kOffLines[] = {1.2, 1.45};

// A tile steps through those K tiles of 64 in which some of its block rows store anything.
double predict_16_bit_us(const Problem& p, const Device& device, bool narrow) {
  const Fit& fit = kFits[narrow][p.direction == Direction::dx];
  const wgmma_dds::TileShape tile = narrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile;
  const Work blocks = work_of(p), w = merged_work(blocks);
  const bool merges = w.side > blocks.side || w.gathered > blocks.gathered;
  const double rows = std::max(1.0, tile.outputs / w.side), k_tiles = std::ceil(w.depth / 64);
  // Two blocks of 32 share a K tile.
  const auto of_k_tile = [&](double density) {
    return w.gathered == 32 && !w.banded ? 1 - (1 - density) * (1 - density) : density;
  };
  const double density = of_k_tile(w.density), steps = touched(w, density, rows);
  const double longest =
      w.banded ? steps
               : std::max(steps, 1 - std::pow(1 - density, rows - 1) * (1 - of_k_tile(w.row_density)));
  const double m_tiles = std::ceil(w.m / tile.tokens), tiles = m_tiles * std::ceil(w.out / tile.outputs);
  const double stored = w.out * w.depth * w.density * w.size;
  const double flops = 2 * m_tiles * tile.tokens * w.out * w.depth * w.density;
  const double products = rate_us(flops, fit.flops, device) * (w.side == 32 ? 1 + fit.slices : 1);
  const double each = k_tiles * steps * (fit.step + fit.step_row * rows);
  const double merging = fit.merge_us + fit.merged * us(memory_seconds(bytes_of(p).stored + stored, device));
  const double copies = w.off_lines ? kOffLines[p.direction == Direction::dx] : 1;
  return fit.start_us + fit.round_us * std::ceil(tiles / device.multiprocessors) + (merges ? merging : 0) +
         copies * (chain_us(k_tiles * longest * (fit.chain + fit.chain_row * rows), device) +
                   std::max(products, chain_us(each * tiles / device.multiprocessors, device))) +
         fit.streams * us(memory_seconds(stored + bytes_of(p).tokens, device));
}

// dX of TF32 reads transposed blocks, which a pass writes.
std::size_t transposed_bytes(const Problem& p) {
  if (p.direction != Direction::dx || p.dtype != DType::f32) return 0;
  return static_cast<std::size_t>(p.blocks) * static_cast<std::size_t>(p.block.rows) *
         static_cast<std::size_t>(p.block.cols) * sizeof(float);
}

template <bool kNarrow>
Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = kNarrow ? refuse_narrow(p, machine) : refusal_of_both(p, machine, false))
    return why;
  const double predicted_us = wgmma_dds::predict_us(p, machine, kNarrow);
  if (p.direction == Direction::dw) {
    const wgmma_sdd::StepShape& step = dw_step(p);
    const wgmma_sdd::Way way = dw_way(p, machine, kNarrow);
    out.add({wgmma_sdd::schedule_of(p, step, way), predicted_us,
             wgmma_sdd::workspace_of(p, step, machine.cuda.multiprocessors, way)});
    return {};
  }
  out.add({wgmma_dds::schedule_of(p, machine, kNarrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile),
           predicted_us, transposed_bytes(p)});
  return {};
}

int launch(const MatmulArgs& args, const Schedule& schedule, const Executor&) {
  return args.direction == Direction::dw ? sm90_wgmma_sdd(args, schedule) : sm90_wgmma_dds(args, schedule);
}

template <bool kNarrow>
Kernel row(const char* name) {
  Kernel made = cuda_row(name, propose<kNarrow>, launch);
  // A pass prepares f32 operands of dW, and takes any alignment.
  made.traits.needs_aligned = [](const Problem& p) {
    return p.direction != Direction::dw || p.dtype != DType::f32 ? Aligned::all : Aligned::none;
  };
  made.traits.stores_pre = true;
  made.traits.adds_f32_residual = false;
  made.traits.follows_index = true;
  return made;
}

template <bool kNarrow>
Refusal propose_scaled(const ScaledProblem& p, const Machine& machine, Proposals<Scaled>& out) {
  constexpr wgmma_dds::TileShape kTile = kNarrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile;
  const Problem same = forward_of(p);
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.dtype == DType::i8) return "multiplies f16, bf16, float8_e4m3fn and TF32 only, the dtype is int8";
  if (const Refusal why = refuse_empty_or_huge(same)) return why;
  // Rows of 32 bytes move at a third of the copy engine's rate.
  if (const Refusal why = refuse_small_blocks(p, 64)) return why;
  if (const Refusal why = wgmma_dds::refuse_tiles(same, kTile)) return why;
  const double us =
      predict_dds_us(same, Device(machine), kNarrow, static_cast<double>(size_of(p.out)), !p.fast_accum);
  out.add({wgmma_dds::scaled_schedule_of(p, machine, kTile), us, 0});
  return {};
}

template <bool kNarrow>
ScaledKernel scaled_row_of(const char* name) {
  ScaledKernel made = scaled_row(name, propose_scaled<kNarrow>, launch);
  made.traits.needs_aligned = [](const ScaledProblem&) { return Aligned::all; };
  return made;
}

}  // namespace

namespace wgmma_dds {

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
                                 : predict_dds_us(p, device, narrow, 4.0, false);
  return wgmma_sdd::predict_us(p, device, dw_step(p), narrow);
}

Schedule walk_of(const Problem& p, const plan::Machine& machine, const TileShape& tile) {
  const bool dx = p.direction == Direction::dx;
  const auto number_of = [](std::int64_t size, int each) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((size + each - 1) / each, 1, 1 << 15));
  };
  const unsigned m_tiles = number_of(p.m, tile.tokens),
                 groups = number_of(dx ? p.cols : p.rows, tile.outputs);
  const auto places =
      static_cast<unsigned>(std::max(1, machine.cuda.multiprocessors) * tile.per_multiprocessor);
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t value_bytes = tile.value_bytes > 0 ? tile.value_bytes : bytes;
  const unsigned chunk =
      chunk_of(m_tiles, groups, places,
               {p.blocks * p.block.rows * p.block.cols * value_bytes, p.m * (dx ? p.rows : p.cols) * bytes,
                static_cast<std::int64_t>(machine.cuda.l2_bytes)});
  Schedule schedule;
  schedule.groups = {std::max(1, tile.outputs / (dx ? p.block.cols : p.block.rows)), 1, 1};
  if (chunk < groups) schedule.chunk_n = static_cast<std::int32_t>(chunk);
  // Narrow tiles that share a multiprocessor take many rounds, and do not keep step.
  schedule.grid = static_cast<std::int32_t>(std::min(m_tiles * groups, places));
  schedule.stride_n = 1;
  if (tile.per_multiprocessor == 1) {
    const Walk walk = walk_over(m_tiles, groups, places);
    schedule.grid = static_cast<std::int32_t>(walk.grid);
    schedule.stride_n = static_cast<std::int32_t>(walk.stride);
    if (chunk == groups && tile.outputs > kNarrowTile.outputs)
      schedule.groups.step = static_cast<int>(walk.step);
  }
  // Two blocks of 32 share a K tile.
  if (size_of(p.dtype) == 2 && (dx ? p.block.rows : p.block.cols) == 32 && !narrow_k_tiles(p))
    schedule.groups.span = 2;
  return schedule;
}

Schedule schedule_of(const Problem& p, const plan::Machine& machine, const TileShape& tile) {
  const bool dx = p.direction == Direction::dx;
  const int side = dx ? p.block.cols : p.block.rows;
  const auto size = static_cast<int>(size_of(p.dtype));
  Schedule schedule = walk_of(p, machine, tile);
  schedule.tile_m = tile.tokens, schedule.tile_n = tile.outputs;
  // A K tile has 128 bytes; few blocks of 32 have K tiles of their own size.
  schedule.tile_k = (narrow_k_tiles(p) ? 64 : 128) / size;
  schedule.swap_ab = tile.tokens == kWideTile.tokens && side >= 64 && size == 2;
  // With swap-AB and without a residual, forward may store a tile beside the next one's products, but not
  // with an activation.
  schedule.stores_at_end = schedule.swap_ab && !dx && !p.residual && p.activation != Activation::none;
  return schedule;
}

Schedule scaled_schedule_of(const ScaledProblem& p, const plan::Machine& machine, const TileShape& tile) {
  const Problem same = forward_of(p);
  const bool promotes = !p.fast_accum;
  Schedule schedule = walk_of(same, machine, tile);
  // Two K tiles of 8-bit blocks share a stage and, with promotion, a sum before it is rounded to fp32. The
  // block rows of the tile decide which two, so they keep their order.
  if (promotes) schedule.groups = {0, 1};
  schedule.tile_m = tile.tokens, schedule.tile_n = tile.outputs;
  schedule.tile_k = p.block.cols == 64 ? 64 : 128;  // blocks of 64 have K tiles of their own size
  schedule.swap_ab =
      tile.tokens == kWideTile.tokens && p.block.rows >= 64 && !promotes && size_of(p.out) == 2;
  // Blocks of 64 measured faster without deferred stores where tiles are long, and slower at low densities.
  const bool long_tiles = p.block.rows < 128 && p.blocks * 20 > cells_of(same) * 3;
  schedule.stores_at_end = schedule.swap_ab && (p.activation != Activation::none || long_tiles);
  return schedule;
}

}  // namespace wgmma_dds

Kernel sm90_wgmma_row() { return row<false>("sm90_wgmma"); }
Kernel sm90_wgmma_narrow_row() { return row<true>("sm90_wgmma_narrow"); }
ScaledKernel sm90_wgmma_scaled_row() { return scaled_row_of<false>("sm90_wgmma"); }
ScaledKernel sm90_wgmma_narrow_scaled_row() { return scaled_row_of<true>("sm90_wgmma_narrow"); }

}  // namespace sparseloom::kernels::cuda

#endif
