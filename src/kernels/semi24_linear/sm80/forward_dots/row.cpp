// The row of forward_dots.
#include "kernels/semi24_linear/cuda/rows.h"
#include "kernels/semi24_linear/sm80/forward_dots/kernel.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

constexpr double kProductsPerClock = 16;  // of a multiprocessor

Refusal propose(const Semi24ScaledProblem& p, const plan::Machine& machine, Proposals<Semi24Scaled>& out) {
  const Device device(machine);
  const double products =
      0.5 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  out.add({{}, kLaunchUs + us(products / (kProductsPerClock * device.clocks())), 0});
  return {};
}

int launch(const Semi24Scaled::Args& args, const Semi24Scaled::Schedule&, const Executor&) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return sm80_semi24_dots(args.product, args.view);
}

}  // namespace

Row<Semi24Scaled> sm80_scaled_dots() { return {"sm80_dots", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::semi24_rows

#endif
