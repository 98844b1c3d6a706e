// The rows of sm90_conv and sm90_conv_narrow: forward and dX by forward_wgmma, dW by dw_wgmma.
#include <algorithm>

#include "kernels/bsr_conv/cuda/product.h"
#include "kernels/bsr_conv/rows.h"
#include "kernels/bsr_conv/sm90/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda::conv_rows {
namespace {

// The weight of a DRAM byte in bsr_linear's prediction of the product, beside its other terms (Fit::streams
// of bsr_linear/sm90/wgmma/forward/predict.cpp): the product reads X from DRAM once per tap, the convolution
// once.
constexpr double kStreams = 0.45;
// A convolution's time relative to bsr_linear's prediction of the product: less, since its tokens are in L2.
// Wide tiles, then narrow ones: fitted to 43 convolutions of a sweep of an H200 and to 24 long ones (3 x 3,
// 64 images, 512 channels of 28 x 28 and 1024 of 14 x 14; docs/log, 2026-11-28). dW: to 24 and 12. An H100
// took 1.3 times as long for the long ones.
constexpr double kStartUs = 0.5, kShare[] = {0.9, 0.85}, kDwStartUs = 6, kDwLonger = 1.06;

template <bool kNarrow>
Refusal propose(const bsr_conv::Problem& p, const plan::Machine& machine, Proposals<bsr_conv::Conv>& out) {
  const bool dx = p.direction == Direction::dx, dw = p.direction == Direction::dw;
  if (const Refusal why = refuse(p)) return why;
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.m == 0) return "copies pixels by TMA, and the call has none";
  const int side = p.block.rows;
  if (side != p.block.cols || side < 32 || side > 128)
    return {"needs square blocks of 32, 64 or 128, the block is {}x{}", p.block.rows, p.block.cols};
  if (!p.aligned || (!p.out_aligned && !dw))
    return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  if (dx && p.shape.strides() != 1) return "supports dx of stride 1 only";
  if (!wgmma_conv_possible(p.shape, dx))
    return "needs strides of 8 at most and taps and padding within 128 pixels, or within 16 with three axes";
  sparseloom::Problem product = product_of(p);
  const bool passes =
      p.residual || (dx && p.activation != Activation::none);  // passes over y after the kernel
  product.residual = false;
  if (dx) product.activation = Activation::none;
  const Device device(machine);
  if (dw) {
    if (p.accumulate ? false : !p.out_aligned)
      return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
    const int multiprocessors = machine.cuda.multiprocessors;
    const wgmma::dw::Size size = wgmma::dw::size_of_problem(product, wgmma::dw::kStep16, multiprocessors);
    wgmma::dw::Way way;
    way.deal = wgmma::dw::deal(size, kNarrow);
    if (way.deal.most_blocks == 0) return "halves the work items, which then hold no block";
    const double memory = us(memory_seconds(
        std::max(0.0, bytes_of(product).tokens - repeated_bytes(p)) + bytes_of(product).stored, device));
    out.add({wgmma::dw::schedule_of(product, wgmma::dw::kStep16, way),
             kDwStartUs + kDwLonger * std::max(us(way.deal.clocks / device.clock_hz), memory),
             wgmma::dw::workspace_bytes(size, way)});
    return {};
  }
  const wgmma::forward::TileShape& tile = kNarrow ? wgmma::forward::kNarrowTile : wgmma::forward::kWideTile;
  if (const Refusal why = wgmma::forward::refuse_tiles(product, tile)) return why;
  Schedule schedule = wgmma::forward::schedule_of(product, machine, tile);
  schedule.tile_k = 64;  // K tiles of half a line were measured for products only
  schedule.groups = {0};
  const double us_of_product = wgmma::forward::predict_us(product, machine, kNarrow),
               repeated = kStreams * us(memory_seconds(repeated_bytes(p), device));
  const double written = static_cast<double>(p.m) * static_cast<double>((dx ? p.cols : p.rows) * 2),
               pass = passes ? kLaunchUs + us(memory_seconds((p.residual ? 3 : 2) * written, device)) : 0;
  out.add({schedule, kStartUs + kShare[kNarrow] * std::max(kLaunchUs, us_of_product - repeated) + pass, 0});
  return {};
}

int launch(const bsr_conv::Args& args, const Schedule& schedule, const Executor&) {
  return args.product.direction == Direction::dw ? sm90_wgmma_conv_dw(args.product, args.shape, schedule)
                                                 : sm90_wgmma_conv(args.product, args.shape, schedule);
}

}  // namespace

constexpr bsr_conv::Conv::Traits kTraits{.activates_dx = false, .adds_residual = false};

ConvRow sm90_wgmma() { return {"sm90_conv", Placement::cuda, propose<false>, launch, nullptr, kTraits}; }
ConvRow sm90_wgmma_narrow() {
  return {"sm90_conv_narrow", Placement::cuda, propose<true>, launch, nullptr, kTraits};
}

}  // namespace sparseloom::kernels::cuda::conv_rows

namespace sparseloom::kernels::cuda {

int sm90_wgmma_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  if (args.direction != Direction::dw || args.index.blocks == 0 || !wgmma_conv_possible(shape, false))
    return cudaErrorInvalidValue;
  const int most_blocks = wgmma::dw::most_blocks_of(schedule, wgmma::dw::kStep16, args.index.block);
  if (most_blocks == 0) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return wgmma_conv_dw::conv_wgmma_dw_bf16(args, shape, most_blocks);
    case DType::f16: return wgmma_conv_dw::conv_wgmma_dw_f16(args, shape, most_blocks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda

#endif
