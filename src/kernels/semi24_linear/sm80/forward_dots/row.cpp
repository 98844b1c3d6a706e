// The row of forward_dots.
#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm80/entries.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Stored elements per clock that a multiprocessor multiplies by up to 8 tokens: 14336 x 4096 of e4m3 and one
// token took 208 us on an H100.
constexpr double kElementsPerClock = 0.6;
constexpr std::int64_t kTokens = 8;

Refusal propose(const ScaledLinearProblem& p, const plan::Machine& machine, Proposals<Semi24Scaled>& out) {
  const Device device(machine);
  const double elements = static_cast<double>(p.stored) * static_cast<double>((p.m + kTokens - 1) / kTokens);
  out.add({{}, kLaunchUs + us(elements / (kElementsPerClock * device.clocks())), 0});
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
