// The row dense_dw: dW as the dense product dY^T X by the lent GEMM, of which the stored elements are kept.
// For machines and dtypes without grouped kernels, where the reference searches each strip for each output.
#include <algorithm>

#include "kernels/nmg_linear/rows.h"
#include "layout/nmg.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

Refusal propose(const LinearProblem& p, const plan::Machine&, Proposals<NmgLinear>& out) {
  if (p.direction != Direction::dw) return "supports dw only";
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  // Not measured: sparse wins even against the machine's peak, or there is nothing else.
  constexpr double kSlowFlops = 5e9, kPackedNs = 4;
  const double flops = p.rates.gemm_flops > 0 ? p.rates.gemm_flops : kSlowFlops;
  const auto product = static_cast<double>(p.m) * static_cast<double>(p.rows * p.cols);
  const double packed_us = 1e-3 * kPackedNs * static_cast<double>(p.stored) / std::max(1, p.threads);
  out.add(
      {{}, 2e6 * product / flops + packed_us, static_cast<std::size_t>(p.rows * p.cols) * size_of(p.dtype)});
  return {};
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

const Row<NmgLinear> kNmgDenseDw{"dense_dw", Placement::cpu, propose, launch, generic::kDenseCaveat};

}  // namespace sparseloom::kernels
