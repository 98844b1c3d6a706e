// The row of slabs.
#include <algorithm>
#include <climits>
#include <cmath>

#include "kernels/csr_linear/rows.h"
#include "kernels/csr_linear/sm80/entries.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda::csr_rows {
namespace {

using slabs::Cut;

// Clocks of a multiprocessor, fitted to an H100: per stored element beside its tokens; per row and slab; per
// 32 elements of x to copy; per thread block to begin and end; the factor of a thread block alone on its
// multiprocessor; and for dX, to permute the values into the order of the columns.
constexpr double kElement = 1.16, kRowSlab = 42, kCopyX = 5.1, kBlock = 1650, kAlone = 1.2, kByColumn = 2.2;

/// Bytes of a thread block such that a multiprocessor has two of them; each reserves 1 KB.
int most_of(std::size_t shared_bytes) { return static_cast<int>(shared_bytes / 2) - 1024; }

double predict_us(const LinearProblem& p, const Cut& cut, const Device& device) {
  const bool dx = p.direction == Direction::dx;
  const std::int64_t outputs = dx ? p.cols : p.rows, depth = dx ? p.rows : p.cols;
  const int size = static_cast<int>(size_of(p.dtype));
  const slabs::Room room = slabs::room_of(cut, size, depth, most_of(device.shared_bytes));
  const double slab_count = std::ceil(static_cast<double>(depth) / room.features), rows = cut.rows,
               blocks = std::ceil(static_cast<double>(outputs) / rows) *
                        std::ceil(static_cast<double>(p.m) / cut.tokens()),
               elements = static_cast<double>(p.stored) / static_cast<double>(outputs) * rows,
               sms = std::max(device.multiprocessors, 1);
  // A load of 32 lanes takes one clock per 128 bytes.
  const double load = std::max(1.0, cut.tokens() * size / 128.0);
  const double clocks = kBlock + elements * (load + kElement) + slab_count * rows * kRowSlab +
                        static_cast<double>(depth) * cut.tokens() / 32 * kCopyX;
  const double turns = blocks <= sms ? kAlone : std::ceil(2 * blocks / sms) / 2;
  const double by_column = dx ? static_cast<double>(p.stored) * kByColumn / sms : 0;
  return (dx ? 2 : 1) * kLaunchUs + 1e6 * (turns * clocks + by_column) / device.clock_hz;
}

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  if (const Refusal why = refuse(p)) return why;
  if (p.direction == Direction::dw) return "supports forward and dX only, the direction is dw";
  if (p.rows > INT_MAX / 2 || p.cols > INT_MAX / 2)
    return {"counts rows and columns of W in 30 bits, W is [{}, {}]", p.rows, p.cols};
  const Device device(machine);
  for (int i = 0; i < slabs::kCutCount; ++i) {
    const Cut& cut = slabs::kCuts[i];
    const std::int64_t outputs = p.direction == Direction::dx ? p.cols : p.rows;
    if ((outputs / cut.rows + 1) > INT_MAX / (p.m / cut.tokens() + 1)) continue;
    out.add({{i}, predict_us(p, cut, device), csr_slabs_workspace(p.direction, p.stored, p.dtype)});
  }
  return {};
}

int launch(const CsrLinear::Args& args, const CsrLinear::Schedule& schedule, const Executor&) {
  const int device = args.product.device;
  const runtime::CudaDeviceScope scope(device);
  return sm80_csr_slabs({args.product, args.view}, schedule.variant,
                        most_of(runtime::cuda_device(device).shared_bytes));
}

}  // namespace

CsrRow slabs() { return {"sm80_slabs", Placement::cuda, propose, launch}; }

}  // namespace sparseloom::kernels::cuda::csr_rows

#endif
