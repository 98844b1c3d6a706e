// The row dense_dw of n:m:g: for machines and dtypes without grouped kernels, where the reference searches
// each strip for each output.
#include "kernels/generic/dense_dw.h"

#include "kernels/nmg_linear/rows.h"
#include "layout/nmg.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

Refusal propose(const LinearProblem& p, const plan::Machine&, Proposals<NmgLinear>& out) {
  constexpr double kPackedNs = 4;
  return generic::propose_dense_dw(p, kPackedNs, p.rows, out);
}

int launch(const NmgLinear::Args& args, const NmgLinear::Schedule&, const Executor& executor) {
  const NmgView& w = args.view;
  if (args.product.accumulate) {  // which a GEMM of 16 bits would round first
    generic::dw<Nmg>(args.product, w, executor);
    return 0;
  }
  const MatrixView dense = generic::dense_of<Nmg>(args.product, w);
  executor.gemm(executor.context, generic::gemm_of(args.product, dense));
  const ConstMatrixView made{dense.data, dense.dtype, dense.rows, dense.cols, dense.stride};
  runtime::parallel_for(executor, w.chunks() * w.strips(), [&](std::int64_t begin, std::int64_t end) {
    layout::nmg_pack_strips(made, w, args.product.out, begin, end);
  });
  return 0;
}

}  // namespace

const Row<NmgLinear> kNmgDenseDw{"dense_dw", Placement::cpu, propose, launch, generic::kDenseDwCaveat};

}  // namespace sparseloom::kernels
