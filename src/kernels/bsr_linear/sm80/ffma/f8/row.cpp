// The row of sm80_ffma for f8e4m3.
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/bsr_linear/sm80/ffma/row_parts.h"
#include "kernels/shared/cost/cost_terms.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

constexpr double kF8OfFfma = 0.3;  // each product needs a load from shared memory

Refusal propose(const ScaledProblem& p, const plan::Machine& machine, Proposals<Scaled>& out) {
  if (p.dtype != DType::f8e4m3)
    return {"multiplies f32 and float8_e4m3fn only, the dtype is {}", name_of(p.dtype)};
  const double us =
      tiled_us(forward_of(p), Device(machine), kFfma, kF8OfFfma, 64, static_cast<double>(size_of(p.out)));
  out.add({{}, us, 0});
  return {};
}

int launch(const MatmulArgs& args, const Schedule&, const Executor&) { return sm80_ffma_f8(args); }

}  // namespace

ScaledKernel sm80_ffma_scaled_row() { return scaled_row("sm80_ffma", propose, launch); }

}  // namespace sparseloom::kernels::cuda

#endif
