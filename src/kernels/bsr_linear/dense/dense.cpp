// The dense row of BSR: the generic products over layout::Bsr, and BSR's copies on CUDA devices.
#include "kernels/bsr_linear/dense/dense.h"

#include "kernels/bsr_linear/dense/predict.h"
#include "kernels/generic/dense_on_device.h"
#include "kernels/shared/bsr/pack.h"
#include "kernels/shared/bsr/unpack.h"
#include "layout/bsr.h"

namespace sparseloom::kernels {

template <>
struct generic::DeviceCopies<layout::Bsr> {
  static int unpack(const IndexView& view, const void* values, const MatrixView& dense, void* stream) {
    return cuda::sm80_bsr_unpack(view, values, dense, stream);
  }
  static int pack(const ConstMatrixView& dense, const IndexView& view, void* values, void* stream) {
    return cuda::sm80_bsr_pack(dense, view, values, stream);
  }
  static int add(const ConstMatrixView& dense, const IndexView& view, void* values, void* stream) {
    return cuda::sm80_bsr_add(dense, view, values, stream);
  }
};

namespace {

int launch(const MatmulArgs& args, const Executor& executor) {
#ifdef SPARSELOOM_HAVE_CUDA
  if (args.device >= 0) return generic::dense_on_device<layout::Bsr>(args, args.index, executor);
#endif
  return generic::dense_on_cpu<layout::Bsr>(args, args.index, executor);
}

}  // namespace

Kernel dense_kernel() {
  return {{"dense", plan::Side::any, runtime::Isa::generic, generic::dense_refusal<layout::Bsr>,
           dense::predict_us, generic::dense_workspace_bytes, true, false, nullptr, generic::kDenseCaveat},
          launch};
}

}  // namespace sparseloom::kernels
