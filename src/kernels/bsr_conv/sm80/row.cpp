// The row of sm80_mma: forward and dX by forward_mma, dW by dw_mma.
#include <algorithm>

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

// Flops per clock and multiprocessor that the gathers sustain, by the block's side along the outputs: 8, 16,
// 32, 64, 128. Blocks of 32 and 64 from an H100 (512 channels of 28 x 28, 64 images, 3 x 3, densities .12 to
// .52), the others by bsr_linear's ratios; dW likewise.
constexpr double kFlops[] = {80, 160, 330, 400, 520}, kDwFlops[] = {60, 120, 270, 320, 400};

double flops_of(const double (&by_side)[5], int side) {
  int i = 0;
  while (8 << i < side && i < 4) ++i;
  return by_side[i];
}

double predict_us(const bsr_conv::Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  if (p.blocks == 0) return kLaunchUs;
  const sparseloom::Problem product = product_of(p);
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  double flops = 2 * static_cast<double>(p.direction == Direction::dx ? p.shape.out_pixels() : p.m) *
                 static_cast<double>(product.blocks) * p.block.rows * p.block.cols;
  if (p.dtype == DType::f32) flops *= 2;
  const double rate = flops_of(p.direction == Direction::dw ? kDwFlops : kFlops, side) * device.clocks();
  const Bytes bytes = bytes_of(product);
  return kLaunchUs + us(flops / rate) +
         us(memory_seconds(std::max(0.0, bytes.stored + bytes.tokens - repeated_bytes(p)), device));
}

Refusal propose(const bsr_conv::Problem& p, const plan::Machine& machine, Proposals<bsr_conv::Conv>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"has no {}", name_of(p.dtype)};
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  Schedule schedule;
  std::size_t workspace = 0;
  if (p.direction == Direction::dw) {
    const sparseloom::Problem product = product_of(p);
    schedule = sm80_mma_sdd_schedule(product, machine.cuda.multiprocessors);
    workspace = sdd::partial_bytes(product, schedule);
  } else {
    const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
    const dds::TileShape* const tile = conv_dds::tile_of(side);
    if (tile == nullptr) return {"has no tile for blocks of {}", side};
    schedule.tile_m = tile->tokens, schedule.tile_n = tile->block_row;
    schedule.tile_k = tile->chunk_bytes / static_cast<int>(size_of(p.dtype));
  }
  out.add({schedule, predict_us(p, machine), workspace});
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
