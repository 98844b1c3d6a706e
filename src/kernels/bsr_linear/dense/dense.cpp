// The dense rows of BSR: the generic products over layout::Bsr, and BSR's copies on CUDA devices.
#include "kernels/bsr_linear/rows.h"
#include "kernels/generic/dense_on_device.h"
#include "kernels/generic/predict_dense.h"
#include "kernels/runs.h"
#include "kernels/shared/bsr/pack.h"
#include "kernels/shared/cost/cost_terms.h"
#include "layout/bsr.h"

namespace sparseloom::kernels {

template <>
struct generic::DeviceCopies<layout::Bsr> {
  static int unpack(const IndexView& view, const void* values, const MatrixView& dense, void* stream) {
    return cuda::sm80_bsr_unpack(view, 1, values, dense, stream);
  }
  static int pack(const ConstMatrixView& dense, const IndexView& view, void* values, void* stream) {
    return cuda::sm80_bsr_pack(dense, view, 1, values, stream);
  }
  static int add(const ConstMatrixView& dense, const IndexView& view, void* values, void* stream) {
    return cuda::sm80_bsr_add(dense, view, values, stream);
  }
};

namespace {

constinit Runs runs{"dense"};

int launch(const MatmulArgs& args, const Schedule&, const Executor& executor) {
  runs.add();
#ifdef SPARSELOOM_HAVE_CUDA
  if (args.device >= 0) return generic::dense_on_device<layout::Bsr>(args, args.index, executor);
#endif
  return generic::dense_on_cpu<layout::Bsr>(args, args.index, executor);
}

Refusal propose(const Problem& p, const plan::Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = generic::dense_refusal<layout::Bsr>(p, machine)) return why;
  out.add({{}, dense::predict_us(p, machine), generic::dense_workspace_bytes(p)});
  return {};
}

int launch_scaled([[maybe_unused]] const MatmulArgs& args, const Schedule&,
                  [[maybe_unused]] const Executor& executor) {
  runs.add();
#ifdef SPARSELOOM_HAVE_CUDA
  return generic::scaled_dense_on_device<layout::Bsr>(args, args.index, executor);
#else
  return 0;  // propose_scaled refuses the CPU
#endif
}

Refusal propose_scaled(const ScaledProblem& p, const plan::Machine& machine, Proposals<Scaled>& out) {
  if (const Refusal why = generic::dense_refusal<layout::Bsr>(p, machine)) return why;
  out.add({{}, dense::predict_us(p, machine), generic::dense_workspace_bytes(forward_of(p))});
  return {};
}

}  // namespace

Kernel dense_kernel() { return {{"dense", Placement::any, propose, launch, generic::kDenseCaveat}}; }
ScaledKernel scaled_dense_kernel() {
  return {{"dense", Placement::any, propose_scaled, launch_scaled, generic::kDenseCaveat}};
}

}  // namespace sparseloom::kernels
