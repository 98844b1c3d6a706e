// The row `dense_on_device`: it unpacks W and multiplies by the GEMM that the executor lends. It has all
// three directions, and is the only row of dW on a CUDA device.
#include "kernels/generic/dense_on_device.h"
#include "kernels/semi24_linear/cuda/rows.h"
#include "kernels/semi24_linear/sm80/copies/copies.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::generic {

template <>
struct DeviceCopies<Semi24> {
  static int unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) {
    return cuda::semi24_unpack(w, values, dense, stream);
  }
  static int pack(const MatrixView& dense, const Semi24View& w, void* values, void* stream) {
    return cuda::semi24_gather(dense, w, values, stream);
  }
  static int add(const MatrixView& dense, const Semi24View& w, void* values, void* stream) {
    return cuda::semi24_gather_add(dense, w, values, stream);
  }
};

}  // namespace sparseloom::kernels::generic

namespace sparseloom::kernels::cuda::semi24_rows {
namespace {

// Of the memory's rate, what unpacking reached on an H100: 2.6 to 2.8 TB/s in fp32; in 16 bits 2.0 to 2.3.
constexpr double kUnpackShare[2] = {0.9, 0.7};
// Weights of a few MB were unpacked at 1.1 to 1.7 TB/s: the grid fills and drains once, whatever their size.
constexpr double kUnpackStartUs = 2;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
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
  const double unpack = memory_seconds(size * 1.6 * weights, device) / kUnpackShare[size_of(p.dtype) == 2];
  out.add({{},
           2 * kLaunchUs + kUnpackStartUs + us(gemm + pass + unpack),
           static_cast<std::size_t>(p.rows * p.cols) * size_of(p.dtype)});
  return {};
}

int launch(const Semi24Linear::Args& args, const Semi24Linear::Schedule&, const Executor& executor) {
  const runtime::CudaDeviceScope scope(args.product.device);
  return generic::dense_on_device<Semi24>(args.product, args.view, executor);
}

}  // namespace

Row<Semi24Linear> dense() {
  return {"dense_on_device", Placement::cuda, propose, launch, generic::kDenseCaveat};
}

}  // namespace sparseloom::kernels::cuda::semi24_rows

#endif
