// The driver of the decode kernels: one parallel loop over output units, cut into work items of equal cost.
#include "kernels/bsr_linear/cpu/decode.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

constexpr int kMostTasks = Parts::kMost / kPartsOfTask;

}  // namespace

void run_decode(const DecodeOps& ops, const MatmulArgs& args, const Executor& executor) {
  const IndexView& w = args.index;
  const bool forward = args.direction == Direction::forward;
  const std::int64_t blocks = forward ? w.block_rows() : w.block_cols();
  const std::int64_t subs =
      forward ? w.block.rows / kGroup : w.block.cols / ops.dx_strip(args.m, w.block.cols);
  if (args.m == 0 || blocks == 0) return;
  ops.runs->add();
  const DecodeFunction function = ops.function(args.dtype, args.direction, args.m);
  const double elements = static_cast<double>(w.blocks * w.block_elements() + w.rows + w.cols);
  const std::int64_t tasks = std::min<std::int64_t>(tasks_of(elements / kTaskElements, executor), kMostTasks);
  const RunningCosts costs(args);
  const std::int64_t parts = tasks == 1 ? 1 : kPartsOfTask * tasks;
  Parts shared(parts, tasks);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    shared.work(task, [&](std::int64_t part) {
      const Range units = units_of_part(costs, blocks, subs, part, parts);
      function(args, {units.begin, units.end});
    });
  });
}

}  // namespace sparseloom::kernels::cpu
