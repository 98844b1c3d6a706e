// The row of sampled.
#include <algorithm>
#include <climits>

#include "kernels/csr_linear/rows.h"
#include "kernels/csr_linear/sm80/entries.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::csr_rows {
namespace {

// Bytes per second of X from L2 and L1 together, in 1e12, on an H200; and clocks of a multiprocessor per
// element and tokens of a warp.
constexpr double kTera = 8.5, kElementClocks = 7;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (p.direction != Direction::dw) return {"supports dW only, the direction is {}", name_of(p.direction)};
  if (p.rows > INT_MAX / 2 || p.cols > INT_MAX / 2)
    return {"counts rows and columns of W in 30 bits, W is [{}, {}]", p.rows, p.cols};
  const Device device(machine);
  const double padded = static_cast<double>(csr_sampled_padded(p.m)),
               size = static_cast<double>(size_of(p.dtype)), stored = static_cast<double>(p.stored),
               sms = std::max(device.multiprocessors, 1);
  // Both operands are transposed; the copies are still in L2.
  const double transposed = padded * size * static_cast<double>(p.rows + p.cols);
  const double tiles = padded / (32 * csr_sampled_tokens(p.m));
  const double clocks = (stored + 8 * static_cast<double>(p.rows)) * tiles * kElementClocks / sms;
  out.add({{},
           2 * kLaunchUs + us(memory_seconds(transposed + stored_bytes(p), device)) +
               std::max(1e6 * clocks / device.clock_hz, rate_us(stored * padded * size, kTera, device)),
           csr_sampled_workspace(p.rows, p.cols, p.m, p.dtype)});
  return {};
}

int launch(const CsrLinear::Args& args, const CsrLinear::Schedule&, const Executor&) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return sm80_csr_sampled({args.product, args.view});
}

}  // namespace

CsrRow sampled() { return {"sm80_sampled", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::csr_rows

#endif
