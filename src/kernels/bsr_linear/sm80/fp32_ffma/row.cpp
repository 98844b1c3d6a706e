// The row of sm80_ffma: f32 by fp32_ffma, f8e4m3 by forward_f8.
#include <algorithm>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/forward_f8/entry.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/entry.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/sdd_cut.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Useful flops per clock and multiprocessor, fitted as those of sm80_mma (../forward_mma/row.cpp).
constexpr FlopsBySide kFfma = {60, 130, 165, kFfmaFlops, kFfmaFlops};
constexpr double kF8OfFfma = 0.3;  // each product needs a load from shared memory

Refusal refusal(const Problem& p) {
  if (p.dtype != DType::f32 && p.dtype != DType::f8e4m3)
    return {"multiplies f32 and float8_e4m3fn only, the dtype is {}", name_of(p.dtype)};
  return {};
}

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const double scale = p.dtype == DType::f8e4m3 ? kF8OfFfma : 1;
  if (p.direction != Direction::dw || p.blocks == 0) return tiled_us(p, device, kFfma, kFfma, scale, 64);
  const ffma::SddCut cut = ffma::cut_of_product(p, device.multiprocessors);
  const double alone = ffma::kSddTokenSeconds * static_cast<double>(std::min(p.m, cut.piece_tokens));
  return tiled_us(p, device, kFfma, kFfma, scale, 64, alone) + (cut.pieces > 1 ? kPiecesUs : 0);
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p)) return why;
  const bool dw = p.direction == Direction::dw;
  out.add({{}, predict_us(p, machine), dw ? sm80_ffma_sdd_workspace(p, machine.cuda.multiprocessors) : 0});
  return {};
}

int launch(const MatmulArgs& args, const Schedule&, const Executor&) {
  if (args.dtype == DType::f8e4m3) return sm80_f8_dds(args);
  return args.direction == Direction::dw ? sm80_ffma_sdd(args) : sm80_ffma_dds(args);
}

}  // namespace

Kernel sm80_ffma_row() {
  Kernel row = cuda_row("sm80_ffma", propose, launch);
  row.scaled = true;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
