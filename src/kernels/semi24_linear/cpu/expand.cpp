// The driver of the expand kernels: one parallel loop over units of outputs.
#if defined(__x86_64__)

#include "kernels/semi24_linear/cpu/expand.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/claims.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

constexpr int kMostTasks = Parts::kMost / kPartsOfTask;

std::int64_t stride_of(std::int64_t cols) { return core::round_up(cols, 4 * kExpandGroups); }

}  // namespace

std::size_t expand_workspace(const ExpandOps& ops, std::int64_t m, std::int64_t cols) {
  return static_cast<std::size_t>(m * stride_of(cols)) * ops.x_bytes;
}

void run_expand(const ExpandOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  if (args.m == 0 || w.rows == 0) return;
  ops.runs->add();
  // One thread packs the tokens: they are at most 16, and beside W few bytes.
  const std::int64_t stride = stride_of(w.cols), units = core::ceil_div(w.rows, kExpandOutputs);
  ops.pack_x(args, w.cols, args.workspace, stride);
  const ExpandJob job{args, w, args.workspace, stride};
  const double elements = static_cast<double>(Semi24::stored(w) + w.rows + w.cols);
  const std::int64_t tasks = std::clamp<std::int64_t>(static_cast<std::int64_t>(elements / kTaskElements), 1,
                                                      std::clamp(executor.num_threads, 1, kMostTasks));
  const std::int64_t parts = tasks == 1 ? 1 : kPartsOfTask * tasks;
  Parts shared(parts, tasks);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    shared.work(task, [&](std::int64_t part) {
      const Range range = share(units, part, parts);
      ops.units(job, range.begin, range.end);
    });
  });
}

}  // namespace sparseloom::kernels::cpu

#endif
