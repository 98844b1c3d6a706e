// The driver of the expand kernels: one parallel loop over units of outputs.
#if defined(__x86_64__)

#include "kernels/semi24_linear/cpu/expand.h"

#include "kernels/semi24_linear/cpu/tasks.h"

namespace sparseloom::kernels::cpu {
namespace {

std::int64_t stride_of(std::int64_t cols) { return core::round_up(cols, 4 * kExpandGroups); }

}  // namespace

std::size_t expand_workspace(const ExpandOps& ops, std::int64_t m, std::int64_t cols) {
  return static_cast<std::size_t>(m * stride_of(cols)) * ops.x_bytes;
}

void run_expand(const ExpandOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  if (args.m == 0 || w.rows == 0) return;
  ops.runs->add();
  // One thread packs the tokens: they are at most 16, few bytes beside W.
  ops.pack_x(args, w.cols, args.workspace, stride_of(w.cols));
  const ExpandJob job{args, w, args.workspace, stride_of(w.cols)};
  for_units(w, core::ceil_div(w.rows, kExpandOutputs), executor,
            [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

}  // namespace sparseloom::kernels::cpu

#endif
