// The row `dense_on_device`: it unpacks W, or gathers dW, and multiplies by the GEMM that the executor lends.
#include "kernels/csr_linear/cuda/rows.h"
#include "kernels/csr_linear/sm80/copies/copies.h"
#include "kernels/generic/dense_on_device.h"

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

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<CsrLinear>& out) {
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return {"multiplies no 8-bit operands, the dtype is {}", name_of(p.dtype)};
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  const Device device(machine);
  Problem shape;
  shape.dtype = p.dtype;
  const double weights = static_cast<double>(p.rows) * static_cast<double>(p.cols),
               size = static_cast<double>(size_of(p.dtype)), m = static_cast<double>(p.m);
  const double gemm =
      std::max(2 * m * weights / (kVendorShare * dense_peak(shape, device)),
               memory_seconds(size * (weights + m * static_cast<double>(p.rows + p.cols)), device));
  const double pass =
      p.activation != Activation::none || p.residual
          ? memory_seconds(size * m * static_cast<double>(p.rows) * (p.residual ? 3 : 2), device)
          : 0;
  // dW may be added to sums in fp32, of which a plan does not know.
  const std::size_t element =
      p.direction == Direction::dw ? std::max(size_of(p.dtype), sizeof(float)) : size_of(p.dtype);
  out.add({{},
           2 * kLaunchUs + us(gemm + pass + memory_seconds(size * weights + stored_bytes(p), device)),
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
