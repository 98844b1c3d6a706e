// The row of sm80_mma: forward and dX by forward_mma, dW by dw_mma.
#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/dw_mma/cut.h"
#include "kernels/bsr_linear/sm80/dw_mma/entry.h"
#include "kernels/bsr_linear/sm80/forward_mma/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// Useful flops per clock and multiprocessor that the kernels reach on long reductions, fitted to the cells of
// bench/results/h200/gpu.json (132 multiprocessors at 1.98 GHz; 1000 is 261 TF/s).
constexpr FlopsBySide kMmaDds = {150, 545, 800, 1170, 1510};
constexpr FlopsBySide kMmaSdd = {120, 375, 840, 1040, 1330};
constexpr double kTf32OfMma = 0.43;
constexpr double kMmaSddL2BytesPerClock = 25;  // block rows of few blocks read dY just for those

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const double scale = p.dtype == DType::f32 ? kTf32OfMma : 1;
  if (p.direction != Direction::dw || p.blocks == 0) return tiled_us(p, device, kMmaDds, kMmaSdd, scale, 128);
  const mma_sdd::Cut cut = mma_sdd::cut_tokens(mma_sdd::size_of_product(p), device.multiprocessors);
  const double read = cut.slower * cut.read_bytes / (kMmaSddL2BytesPerClock * device.clocks());
  return tiled_us(p, device, kMmaDds, kMmaSdd, scale / cut.slower, 128, read) +
         (cut.pieces > 1 ? kPiecesUs : 0);
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_unasked_tf32(p)) return why;
  const bool dw = p.direction == Direction::dw;
  out.add({{}, predict_us(p, machine), dw ? sm80_mma_sdd_workspace(p, machine.cuda.multiprocessors) : 0});
  return {};
}

int launch(const MatmulArgs& args, const Schedule&, const Executor&) {
  return args.direction == Direction::dw ? sm80_mma_sdd(args) : sm80_mma_dds(args);
}

}  // namespace

Kernel sm80_mma_row() { return cuda_row("sm80_mma", propose, launch); }

}  // namespace sparseloom::kernels::cuda

#endif
