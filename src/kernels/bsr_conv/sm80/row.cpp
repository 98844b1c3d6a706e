// The row of sm80_mma: forward and dX by forward_mma, dW by dw_mma.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_conv/cuda/product.h"
#include "kernels/bsr_conv/rows.h"
#include "kernels/bsr_conv/sm80/entry.h"
#include "kernels/bsr_conv/walk.h"
#include "kernels/bsr_linear/sm80/mma/dw/row_parts.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda::conv_rows {
namespace {

using BySide = double[5];  // blocks of 8, 16, 32, 64, 128 along the outputs

double of(const BySide& by_side, int side) {
  int i = 0;
  while (8 << i < side && i < 4) ++i;
  return by_side[i];
}

// Fitted to 97 convolutions of a sweep of an H200, forward and dX (docs/log, 2026-11-28): 90 % and 91 % are
// within 1.3 times. There were no blocks of 8.
struct Fit {
  double start_us, round_us;
  BySide step_us;      // a tile alone on its multiprocessor
  double tf32;         // time of a TF32 step relative to a 16-bit one
  BySide flops;        // per clock and multiprocessor, limited by the gathers
  double by_elements;  // factor of element-wise copies
};
constexpr Fit kForward{4.51, 1.89, {0.8, 0.63, 0.7, 0.8, 1.14}, 1.14, {100, 190, 647, 687, 718}, 3.7},
    kDx{5.59, 2.76, {0.8, 0.66, 0.52, 0.73, 1.19}, 1.28, {100, 253, 600, 680, 1000}, 4.5};
// dW: fitted to 53 of the same sweep; the flops of dX and dW also to 24 long ones.
constexpr BySide kDwFlops = {80, 160, 345, 415, 520}, kDwStepUs = {1.6, 1.55, 1.45, 1.6, 1.3};
constexpr double kDwStartUs = 4.1, kPartialSumsUs = 3.8, kDwByElements = 3;

// The inputs of both predictions beside a tile's steps.
struct Common {
  Common(const bsr_conv::Problem& p, const sparseloom::Problem& product, const Device& device,
         const BySide& flops_by_side) {
    const bool dx = p.direction == Direction::dx;
    const double pixels = static_cast<double>(dx ? p.shape.out_pixels() : p.m),
                 elements = static_cast<double>(product.blocks) * p.block.rows * p.block.cols,
                 flops = (p.dtype == DType::f32 ? 4 : 2) * pixels * elements;
    busy_us = us(flops / (of(flops_by_side, dx ? p.block.cols : p.block.rows) * device.clocks()));
    const Bytes bytes = bytes_of(product);
    memory_us =
        us(memory_seconds(std::max(0.0, bytes.stored + bytes.tokens - repeated_bytes(p)), device)) / 2;
  }

  double busy_us;    // with all multiprocessors busy to the end
  double memory_us;  // DRAM time not overlapped by the steps
};

// Most taps of any class of dX's pixels (../walk.h).
double most_taps(const ConvShape& shape) {
  double taps = 1;
  for (const ConvAxis& axis : shape.axis) {
    const int step = axis.stride / conv::greatest_divisor(axis.stride, axis.dilation);
    taps *= (axis.kernel + step - 1) / step;
  }
  return taps;
}

// A tile's steps are sequential, however few tiles there are. The first wave of tiles takes the steps of the
// longest list of blocks, and later waves run at the sustained rate of the multiprocessors.
double predict_us(const bsr_conv::Problem& p, const mma::forward::TileShape& tile,
                  const plan::Machine& machine) {
  if (p.blocks == 0) return kLaunchUs;
  const Device device(machine);
  const bool dx = p.direction == Direction::dx;
  const Fit& fit = dx ? kDx : kForward;
  const Common common(p, product_of(p), device, fit.flops);
  const int side = tile.block_row;
  const double outputs = std::ceil(static_cast<double>(dx ? p.cols : p.rows) / side),
               classes = dx ? static_cast<double>(p.shape.strides()) : 1,
               tiles = classes * outputs * std::ceil(static_cast<double>(p.m) / classes / tile.tokens);
  const double chunk = tile.chunk_bytes / static_cast<double>(size_of(p.dtype)),
               steps = work_of(p).longest * (dx ? most_taps(p.shape) : static_cast<double>(p.shape.taps())) /
                       chunk;
  const double rounds = std::max(1.0, tiles / (device.multiprocessors * tile.blocks_per_sm));
  const double step_us = of(fit.step_us, side) * (p.dtype == DType::f32 ? fit.tf32 : 1);
  return fit.start_us + fit.round_us * rounds + common.memory_us +
         (p.aligned ? 1 : fit.by_elements) *
             (std::max(1.0, steps) * step_us + common.busy_us * (rounds - 1) / rounds);
}

double predict_dw_us(const bsr_conv::Problem& p, const Schedule& schedule, const plan::Machine& machine) {
  if (p.blocks == 0) return kLaunchUs;
  const Device device(machine);
  const sparseloom::Problem product = product_of(p);
  const Common common(p, product, device, kDwFlops);
  const mma::dw::Cut cut =
      mma::dw::cut_tokens(mma::dw::size_of_product(product), machine.cuda.multiprocessors);
  const double steps = std::ceil(static_cast<double>(cut.piece_tokens) / schedule.tile_k),
               written = static_cast<double>(dw_pieces::partial_bytes(product, schedule));
  const double sums = cut.pieces == 1 ? 0 : kPartialSumsUs + us(memory_seconds(2 * written, device));
  return kDwStartUs +
         (p.aligned ? 1 : kDwByElements) * std::max(steps * of(kDwStepUs, p.block.rows), common.busy_us) +
         sums + common.memory_us;
}

Refusal propose(const bsr_conv::Problem& p, const plan::Machine& machine, Proposals<bsr_conv::Conv>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  Schedule schedule;
  if (p.direction == Direction::dw) {
    const sparseloom::Problem product = product_of(p);
    schedule = sm80_mma_dw_schedule(product, machine.cuda.multiprocessors);
    out.add({schedule, predict_dw_us(p, schedule, machine), dw_pieces::partial_bytes(product, schedule)});
    return {};
  }
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const mma::forward::TileShape* const tile = conv_forward::tile_of(side);
  if (tile == nullptr) return {"has no tile for blocks of side {}", side};
  if (const auto needed = static_cast<std::size_t>(conv_forward::bytes_of_thread_block(*tile));
      machine.cuda.shared_bytes < needed)
    return {"needs {} bytes of shared memory, the device has {}", needed, machine.cuda.shared_bytes};
  schedule.tile_m = tile->tokens, schedule.tile_n = tile->block_row;
  schedule.tile_k = tile->chunk_bytes / static_cast<int>(size_of(p.dtype));
  out.add({schedule, predict_us(p, *tile, machine), 0});
  return {};
}

int launch(const bsr_conv::Args& args, const Schedule& schedule, const Executor&) {
  return args.product.direction == Direction::dw ? sm80_conv_dw(args.product, args.shape, schedule)
                                                 : sm80_conv_forward(args.product, args.shape, schedule);
}

}  // namespace

ConvRow sm80_mma() { return {"sm80_conv", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::conv_rows

namespace sparseloom::kernels::cuda {

int sm80_conv_forward(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return dx ? conv_forward::conv_dx_bf16(args, shape, schedule)
                : conv_forward::conv_forward_bf16(args, shape, schedule);
    case DType::f16:
      return dx ? conv_forward::conv_dx_f16(args, shape, schedule)
                : conv_forward::conv_forward_f16(args, shape, schedule);
    case DType::f32:
      if (!args.tf32) return cudaErrorInvalidValue;  // fp32 is not rounded unless allowed
      return dx ? conv_forward::conv_dx_tf32(args, shape, schedule)
                : conv_forward::conv_forward_tf32(args, shape, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
