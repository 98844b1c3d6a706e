// The row of sm80_mma: forward and dX by mma/forward, dW by mma/dw.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/mma/dw/row_parts.h"
#include "kernels/bsr_linear/sm80/mma/entry.h"
#include "kernels/bsr_linear/sm80/mma/forward/schedule.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cost/refusals.h"

#ifdef SPARSELOOM_HAVE_CUDA

#include <cuda_runtime_api.h>

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Fitted to the sweeps of an H100 and an H200 whose seeds docs/log names (2026-11-25);
// forward, then dX.
struct Fit {
  double start_us, tile_us;
  double l2;                 // 1e12 bytes per second of the tokens' gathers
  double flops;              // 1e12 per second; TF32 half
  double chain, chain_side;  // ns per position of the longest block row, and per output of a tile
  double ragged;             // additional cost of element-wise copies
  double streams;            // share of DRAM bytes not overlapped by the products
};
constexpr Fit kForward{3.5, 0.73, 6.67, 313, 8.57, 0.029, 1.53, 1.1},
    kDx{3.28, 1.49, 7.13, 313, 9.29, 0.021, 1.85, 1.05};

// A thread block computes a tile of a block row and 64 tokens, or 128 to 256 if that fills the GPU.
double forward_us(const Problem& p, const Device& device) {
  const Work w = work_of(p);
  const Fit& fit = p.direction == Direction::dx ? kDx : kForward;
  const double wide = w.side == 32 || w.side == 64 ? 256 : 128,
               places = (w.side <= 16 ? 3.0 : 2.0) * device.multiprocessors;
  const double tokens = std::ceil(w.m / wide) * w.block_rows >= places ? wide : 64;
  const double tiles = std::ceil(w.m / tokens) * w.block_rows, slower = w.ragged ? 1 + fit.ragged : 1;
  const double gathered = tiles * w.mean * w.size * tokens;
  const double flops = 2 * tiles * tokens * w.side * w.mean * (p.dtype == DType::f32 ? 2 : 1);
  const double chain = w.longest * (fit.chain + fit.chain_side * w.side);
  return fit.start_us + fit.tile_us * tiles / places + fit.streams * stream_us(p, device) +
         slower * (chain_us(chain, device) +
                   std::max(rate_us(gathered, fit.l2, device), rate_us(flops, fit.flops, device)));
}

// dW. Fitted to the sweeps of the H100: the start, an addition for blocks with a side of 64 or more, the time
// of an item per token in ns, beside the L2 reads and products of all items (1e12 per second), and the stores
// of the blocks.
constexpr double kDwStartUs = 4.8, kDwLargeUs = 1.95, kDwTokenNs = 11.7, kDwPiecesUs = 4.04, kDwL2 = 6.66,
                 kDwFlops = 610, kDwRagged = 10, kDwStores = 2.74;

double dw_us(const Problem& p, const Device& device) {
  const Work w = work_of(p);
  const mma::dw::Cut cut = mma::dw::cut_tokens(mma::dw::size_of_product(p), device.multiprocessors);
  const double slower = w.ragged ? 1 + kDwRagged : 1;
  const double chain = slower * kDwTokenNs * static_cast<double>(std::min(p.m, cut.piece_tokens));
  const double flops = useful_flops(p, w.m) * (p.dtype == DType::f32 ? 2 : 1);
  return kDwStartUs + (std::max(p.block.rows, p.block.cols) >= 64 ? kDwLargeUs : 0) +
         (cut.pieces > 1 ? kDwPiecesUs : 0) + chain_us(chain, device) +
         std::max(slower * rate_us(cut.read_bytes, kDwL2, device), rate_us(flops, kDwFlops, device)) +
         kDwStores * us(memory_seconds(bytes_of(p).stored, device));
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  if (p.blocks == 0) return kLaunchUs;
  return p.direction == Direction::dw ? dw_us(p, device) : forward_us(p, device);
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  const bool dw = p.direction == Direction::dw;
  const Schedule schedule =
      dw ? sm80_mma_dw_schedule(p, machine.cuda.multiprocessors) : mma::forward::schedule_of(p, machine);
  out.add({schedule, predict_us(p, machine), dw ? dw_pieces::partial_bytes(p, schedule) : 0});
  return {};
}

int launch(const MatmulArgs& args, const Schedule& schedule, const Executor&) {
  return args.direction == Direction::dw ? sm80_mma_dw(args, schedule) : sm80_mma_forward(args, schedule);
}

}  // namespace

Kernel sm80_mma_row() {
  Kernel row = cuda_row("sm80_mma", propose, launch);
  row.traits.follows_index = true;
  return row;
}

int sm80_mma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return dx ? mma::forward::dx_bf16(args, schedule) : mma::forward::forward_bf16(args, schedule);
    case DType::f16:
      return dx ? mma::forward::dx_f16(args, schedule) : mma::forward::forward_f16(args, schedule);
    case DType::f32:
      if (!args.tf32)
        return cudaErrorInvalidValue;  // fp32 is not rounded unless allowed: use sm80_ffma_forward
      return dx ? mma::forward::dx_tf32(args, schedule) : mma::forward::forward_tf32(args, schedule);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda

#endif
