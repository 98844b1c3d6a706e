// The row of gather.
#include <algorithm>
#include <cmath>

#include "kernels/csr_linear/rows.h"
#include "kernels/csr_linear/sm80/entries.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::csr_rows {
namespace {

// Clocks of a multiprocessor per 32 stored elements: to read and gather them, and per token; for the values
// that dX finds by their slots; and per row.
constexpr double kClocks = 10, kTokenClocks = 4, kTokenFarClocks = 16, kSlotClocks = 43, kRowClocks = 16;
constexpr double kL2Tera = 5;       // 1e12 bytes per second of x into shared memory, on an H200
constexpr double kRowsAtOnce = 16;  // rows of a thread block if rows are long
constexpr double kChainUs = 0.35;   // per token of dW that is not in shared memory

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  // Empty sums are written too, so no size is refused.
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  const Device device(machine);
  const bool dx = p.direction == Direction::dx, dw = p.direction == Direction::dw;
  const bool staged = csr_gather_stages(p.direction, dx ? p.rows : p.cols, p.m, p.dtype);
  const double at_once = p.m == 1 || dw ? static_cast<double>(p.m) : kCsrGatherTokens,
               slices = dw ? 1 : std::ceil(static_cast<double>(p.m) / at_once);
  const double clocks =
      kClocks + (dx ? kSlotClocks : 0) + at_once * (staged ? kTokenClocks : kTokenFarClocks);
  const double rows = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols),
               size = static_cast<double>(size_of(p.dtype));
  const double work = slices * (static_cast<double>(p.stored) / 32 * clocks + rows * kRowClocks) /
                      std::max(device.multiprocessors, 1);
  const double moved = staged ? slices * std::ceil(rows / kRowsAtOnce) * depth * at_once * size : 0;
  // Lanes that read dY and X from global memory wait for one token after the other.
  const double rounds = std::clamp(static_cast<double>(p.stored) / std::max(rows, 1.0) / 32, 1.0, 2.0),
               chain = dw && !staged ? static_cast<double>(p.m) * rounds * kChainUs : 0;
  out.add({{},
           kLaunchUs + std::max({chain, 1e6 * work / device.clock_hz, rate_us(moved, kL2Tera, device),
                                 us(memory_seconds(stored_bytes(p), device))}),
           0});
  return {};
}

int launch(const CsrLinear::Args& args, const CsrLinear::Schedule&, const Executor&) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return sm80_csr_gather({args.product, args.view});
}

}  // namespace

CsrRow gather() { return {"sm80_gather", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::csr_rows

#endif
