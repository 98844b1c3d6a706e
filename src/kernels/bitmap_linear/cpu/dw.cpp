// The driver of dW: lays out x and dY in cells, then multiplies in work items of rows.
#if defined(__x86_64__)

#include "kernels/bitmap_linear/cpu/dw.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/bitmap_linear/cpu/expand.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

struct Sizes {
  std::int64_t steps, dy_stride;  // of BitmapDwJob
  std::int64_t x, dy;             // bytes

  Sizes(const BitmapDwOps& ops, const BitmapView& w, std::int64_t m)
      : steps(core::ceil_div(m, ops.tokens_of_cell)),
        dy_stride(core::round_up(steps, kLineCells)),
        x(steps * core::round_up(w.cols, kBitmapDwCols) * kCellBytes),
        dy(core::round_up(w.rows, kBitmapRows) * dy_stride * kCellBytes) {}
};

/// Calls write(begin, end) for units of [0, count) by up to `tasks` tasks.
template <class Write>
void in_units(std::int64_t count, std::int64_t unit, std::int64_t tasks, const Executor& executor,
              const Write& write) {
  const std::int64_t units = core::ceil_div(count, unit);
  Claims claims;
  runtime::parallel_tasks(executor, std::min(tasks, units), [&](std::int64_t) {
    for (std::int64_t item; (item = claims.take()) < units;)
      write(item * unit, std::min(count, (item + 1) * unit));
  });
}

}  // namespace

std::size_t bitmap_dw_workspace(const BitmapDwOps& ops, const BitmapView& w, std::int64_t m) {
  const Sizes sizes(ops, w, m);
  return static_cast<std::size_t>(sizes.x + sizes.dy);
}

void run_bitmap_dw(const BitmapDwOps& ops, const MatmulArgs& args, const BitmapView& w,
                   const Executor& executor) {
  ops.runs->add();
  const Sizes sizes(ops, w, args.m);
  const BitmapDwJob job{args,
                        w,
                        sizes.steps,
                        sizes.dy_stride,
                        reinterpret_cast<float*>(args.workspace),
                        reinterpret_cast<float*>(args.workspace + sizes.x)};
  // Keeping the stored elements costs as much as multiplying with some tokens.
  constexpr double kKeepTokens = 8;
  const std::int64_t tasks = tasks_of(
      static_cast<double>(w.rows * w.cols) * (static_cast<double>(args.m) + kKeepTokens) / kTaskProducts,
      executor);
  constexpr std::int64_t kSteps = 4, kRows = 16 * kBitmapRows;
  in_units(sizes.steps, kSteps, tasks, executor,
           [&](std::int64_t begin, std::int64_t end) { ops.prepare_x(job, begin, end); });
  in_units(core::round_up(w.rows, kBitmapRows), kRows, tasks, executor,
           [&](std::int64_t begin, std::int64_t end) { ops.prepare_dy(job, begin, end); });
  const std::int64_t units = core::ceil_div(w.rows, kBitmapRows);
  const std::int64_t parts = tasks == 1 ? 1 : std::min({units, kPartsOfTask * tasks, Parts::kMost});
  Parts shared(parts, std::min(tasks, parts));
  runtime::parallel_tasks(executor, std::min(tasks, parts), [&](std::int64_t task) {
    shared.work(task, [&](std::int64_t part) {
      const Range rows = share(units, part, parts);
      ops.rows(job, rows.begin * kBitmapRows, std::min(rows.end * kBitmapRows, w.rows));
    });
  });
}

}  // namespace sparseloom::kernels::cpu

#endif
