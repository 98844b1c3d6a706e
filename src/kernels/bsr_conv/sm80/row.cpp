// The row of sm80_mma: forward and dX by forward_mma, dW by dw_mma.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_conv/cuda/product.h"
#include "kernels/bsr_conv/cuda/rows.h"
#include "kernels/bsr_conv/sm80/dw_mma/entry.h"
#include "kernels/bsr_conv/sm80/forward_mma/entry.h"
#include "kernels/bsr_conv/sm80/forward_mma/tiles.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/sm80/dw_mma/row_parts.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::conv_rows {
namespace {

using BySide = double[5];  // blocks of 8, 16, 32, 64, 128 along the outputs

double of(const BySide& by_side, int side) {
  int i = 0;
  while (8 << i < side && i < 4) ++i;
  return by_side[i];
}

// Flops per clock and multiprocessor that the gathers sustain. Blocks of 32 and 64 from an H100 (512 channels
// of 28 x 28, 64 images, 3 x 3, densities .12 to .52), the others by bsr_linear's ratios; dW likewise.
constexpr BySide kFlops = {80, 160, 330, 400, 520}, kDwFlops = {60, 120, 270, 320, 400};
// Microseconds of a step of a tile that has its multiprocessor for itself, and of the rest, fitted to 77
// convolutions of a sweep on an H100 (`bench sweep --family bsr_conv --seed 4141`; .63 at p5 and 1.57 at p95
// of what they took). Of 8 there were none.
constexpr BySide kStepUs = {3.6, 3.6, 2.6, 3.6, 4.6}, kDwStepUs = {1.8, 1.75, 1.65, 1.8, 1.45};
constexpr double kStartUs = 4.8, kRoundUs = 1.4, kDwStartUs = 4.1, kPartialSumsUs = 3.8;
// How much longer copies by elements take.
constexpr double kByElements = 3;

// What both predictions add to a tile's steps.
struct Common {
  Common(const bsr_conv::Problem& p, const sparseloom::Problem& product, const Device& device)
      : by_elements(p.aligned ? 1 : kByElements) {
    const bool dx = p.direction == Direction::dx, dw = p.direction == Direction::dw;
    const double pixels = static_cast<double>(dx ? p.shape.out_pixels() : p.m),
                 elements = static_cast<double>(product.blocks) * p.block.rows * p.block.cols,
                 flops = (p.dtype == DType::f32 ? 4 : 2) * pixels * elements;
    busy_us = us(flops / (of(dw ? kDwFlops : kFlops, dx ? p.block.cols : p.block.rows) * device.clocks()));
    const Bytes bytes = bytes_of(product);
    memory_us =
        us(memory_seconds(std::max(0.0, bytes.stored + bytes.tokens - repeated_bytes(p)), device)) / 2;
  }

  double by_elements;
  double busy_us;    // with every multiprocessor busy to the end
  double memory_us;  // what the steps do not hide
};

// A tile's steps follow one another, however few tiles there are. The first round of tiles takes its steps'
// time, and those behind it what the multiprocessors sustain.
double predict_us(const bsr_conv::Problem& p, const dds::TileShape& tile, const plan::Machine& machine) {
  if (p.blocks == 0) return kLaunchUs;
  const Device device(machine);
  const sparseloom::Problem product = product_of(p);
  const Common common(p, product, device);
  const bool dx = p.direction == Direction::dx;
  const int side = tile.block_row, gathered = dx ? p.block.rows : p.block.cols;
  const double outputs = std::ceil(static_cast<double>(dx ? p.cols : p.rows) / side),
               classes = dx ? static_cast<double>(p.shape.strides()) : 1,
               tiles = classes * outputs * std::ceil(static_cast<double>(p.m) / classes / tile.tokens);
  const double chunk = tile.chunk_bytes / static_cast<double>(size_of(p.dtype));
  // The longest list of blocks, of all taps of a class.
  const double steps =
      work_of(p).longest / gathered * (static_cast<double>(p.shape.taps()) / classes) * gathered / chunk;
  const double rounds = std::max(1.0, tiles / (device.multiprocessors * tile.blocks_per_sm));
  return kStartUs + kRoundUs * rounds + common.memory_us +
         common.by_elements *
             (std::max(1.0, steps) * of(kStepUs, side) + common.busy_us * (rounds - 1) / rounds);
}

double predict_dw_us(const bsr_conv::Problem& p, const Schedule& schedule, const plan::Machine& machine) {
  if (p.blocks == 0) return kLaunchUs;
  const Device device(machine);
  const sparseloom::Problem product = product_of(p);
  const Common common(p, product, device);
  const mma_sdd::Cut cut =
      mma_sdd::cut_tokens(mma_sdd::size_of_product(product), machine.cuda.multiprocessors);
  const double steps = std::ceil(static_cast<double>(cut.piece_tokens) / schedule.tile_k),
               written = static_cast<double>(sdd::partial_bytes(product, schedule));
  const double sums = cut.pieces == 1 ? 0 : kPartialSumsUs + us(memory_seconds(2 * written, device));
  return kDwStartUs + common.by_elements * std::max(steps * of(kDwStepUs, p.block.rows), common.busy_us) +
         sums + common.memory_us;
}

Refusal propose(const bsr_conv::Problem& p, const plan::Machine& machine, Proposals<bsr_conv::Conv>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"has no {}", name_of(p.dtype)};
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  Schedule schedule;
  if (p.direction == Direction::dw) {
    const sparseloom::Problem product = product_of(p);
    schedule = sm80_mma_sdd_schedule(product, machine.cuda.multiprocessors);
    out.add({schedule, predict_dw_us(p, schedule, machine), sdd::partial_bytes(product, schedule)});
    return {};
  }
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const dds::TileShape* const tile = conv_dds::tile_of(side);
  if (tile == nullptr) return {"has no tile for blocks of {}", side};
  schedule.tile_m = tile->tokens, schedule.tile_n = tile->block_row;
  schedule.tile_k = tile->chunk_bytes / static_cast<int>(size_of(p.dtype));
  out.add({schedule, predict_us(p, *tile, machine), 0});
  return {};
}

int launch(const bsr_conv::Args& args, const Schedule& schedule, const Executor&) {
  return args.product.direction == Direction::dw ? sm80_conv_sdd(args.product, args.shape, schedule)
                                                 : sm80_conv_dds(args.product, args.shape, schedule);
}

}  // namespace

ConvRow sm80_mma() { return {"sm80_conv", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::conv_rows

#endif
