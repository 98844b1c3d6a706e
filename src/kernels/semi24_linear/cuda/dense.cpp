// The row `dense_on_device`: it unpacks W and multiplies by the GEMM that the executor lends. It has all
// three directions, and is the only row of dW on a CUDA device.
#include "kernels/generic/dense_on_device.h"
#include "kernels/generic/predict_dense.h"
#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm80/entries.h"

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

// The time of unpacking beside the product and kLaunchUs: fitted to the times of this row in two sweeps of an
// H100 (2026-11-26 and 27), as a fraction of the DRAM rate and the grid's start and end. 96 % of the times
// with rows at multiples of 16 bytes are within 1.3 of the prediction.
constexpr double kUnpackShare = 0.8, kUnpackStartUs = 1;

Refusal propose(const LinearProblem& p, const plan::Machine& machine, Proposals<Semi24Linear>& out) {
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  const double weights = static_cast<double>(p.rows) * static_cast<double>(p.cols),
               moved = 1.6 * weights * static_cast<double>(size_of(p.dtype));
  const double unpack = us(memory_seconds(moved, Device(machine))) / kUnpackShare;
  out.add({{},
           kLaunchUs + kUnpackStartUs + unpack + dense::product_us(p, machine),
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
