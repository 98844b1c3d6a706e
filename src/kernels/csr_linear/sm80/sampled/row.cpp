// The row of sampled.
#include <algorithm>
#include <climits>

#include "kernels/csr_linear/cuda/rows.h"
#include "kernels/csr_linear/sm80/sampled/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::csr_rows {
namespace {

constexpr double kL2Tera = 5;         // bytes per second from L2 and L1, in 1e12, of an H200
constexpr double kChunkClocks = 250;  // of a multiprocessor, for 32 elements to begin and be added up

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (p.direction != Direction::dw) return {"multiplies dW only, the direction is {}", name_of(p.direction)};
  if (p.rows > INT_MAX / 2 || p.cols > INT_MAX / 2)
    return {"counts rows and columns of W in 30 bits, W is [{}, {}]", p.rows, p.cols};
  const Device device(machine);
  const double padded = static_cast<double>(csr_sampled_padded(p.m)),
               size = static_cast<double>(size_of(p.dtype)), stored = static_cast<double>(p.stored),
               sms = std::max(device.multiprocessors, 1);
  const double turned = 2 * padded * size * static_cast<double>(p.rows + p.cols);
  const double chunks = stored / 32 + static_cast<double>(p.rows);
  out.add({{},
           2 * kLaunchUs + us(memory_seconds(turned + stored_bytes(p), device)) +
               rate_us(stored * padded * size, kL2Tera, device) +
               1e6 * chunks * kChunkClocks / 8 / sms / device.clock_hz,
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
