// The row `dense_on_device`: it unpacks W, or gathers dW, and multiplies by the GEMM that the executor lends.
#include <algorithm>

#include "kernels/csr_linear/rows.h"
#include "kernels/csr_linear/sm80/entries.h"
#include "kernels/generic/dense_on_device.h"
#include "kernels/generic/predict_dense.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::generic {

template <>
struct DeviceCopies<Csr> {
  static int unpack(const CsrView& w, const void* values, const MatrixView& dense, void* stream) {
    return cuda::csr_unpack(w, values, dense, stream);
  }
  static int pack(const MatrixView& dense, const CsrView& w, void* values, void* stream) {
    return cuda::csr_gather(dense, w, values, stream);
  }
  static int add(const MatrixView& dense, const CsrView& w, void* values, void* stream) {
    return cuda::csr_gather_add(dense, w, values, stream);
  }
};

}  // namespace sparseloom::kernels::generic

namespace sparseloom::kernels::cuda::csr_rows {
namespace {

// Times of unpacking W and gathering dW relative to streaming their bytes, like BSR's on an H100.
constexpr double kUnpacked = 2.1, kGathered = 4.1;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  const double weights = static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const bool dw = p.direction == Direction::dw;
  const double moved = dw ? kGathered * stored_bytes(p)
                          : kUnpacked * (stored_bytes(p) + weights * static_cast<double>(size_of(p.dtype)));
  // dW may be added to sums in fp32, which a plan does not know.
  const std::size_t element = dw ? std::max(size_of(p.dtype), sizeof(float)) : size_of(p.dtype);
  out.add({{},
           kLaunchUs + us(memory_seconds(moved, Device(machine))) + dense::product_us(p, machine),
           static_cast<std::size_t>(p.rows * p.cols) * element});
  return {};
}

int launch(const CsrLinear::Args& args, const CsrLinear::Schedule&, const Executor& executor) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return generic::dense_on_device<Csr>(args.product, args.view, executor);
}

}  // namespace

CsrRow dense() { return {"dense_on_device", Placement::cuda, propose, launch, generic::kDenseCaveat}; }

}  // namespace sparseloom::kernels::cuda::csr_rows

#endif
