// The drivers of AVX2's kernels: in one parallel region all threads pack x (dY), then
// take units of outputs (columns).
#if defined(__x86_64__)

#include "kernels/semi24_linear/cpu/select.h"

#include "kernels/semi24_linear/cpu/columns.h"
#include "kernels/semi24_linear/cpu/gather.h"
#include "kernels/semi24_linear/cpu/scatter.h"
#include "kernels/semi24_linear/cpu/spread.h"
#include "kernels/semi24_linear/cpu/tasks.h"

namespace sparseloom::kernels::cpu {
namespace {

std::int64_t steps_of(std::int64_t cols) { return core::ceil_div(cols, 4 * kSelectGroups); }

}  // namespace

std::size_t select_workspace(std::int64_t m, std::int64_t cols) {
  return static_cast<std::size_t>(steps_of(cols) * m * 4 * kSelectGroups) * sizeof(float);
}

void run_select(const SelectOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  if (args.m == 0 || w.rows == 0) return;
  ops.runs->add();
  const SelectJob job{args, w, args.workspace};
  for_units(
      w, steps_of(w.cols), core::ceil_div(w.rows, kSelectOutputs), executor,
      [&](std::int64_t begin, std::int64_t end) { ops.pack_x(job, begin, end); },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

std::size_t gather_workspace(std::int64_t m, std::int64_t cols) {
  const GatherPanels panels(m);
  return static_cast<std::size_t>(panels.panels * panels.vectors * kGatherLanes * gather_depth(cols)) *
         sizeof(float);
}

void run_gather(const GatherOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  if (args.m == 0 || w.rows == 0) return;
  ops.runs->add();
  const GatherJob job{args, w, GatherPanels(args.m), reinterpret_cast<float*>(args.workspace)};
  const std::int64_t eights = gather_depth(w.cols) / kGatherLanes;
  for_units(
      w, eights, core::ceil_div(w.rows, kGatherOutputs), executor,
      [&](std::int64_t begin, std::int64_t end) {
        ops.pack_x(job, begin * kGatherLanes, end * kGatherLanes);
      },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

std::size_t columns_workspace(std::int64_t m, std::int64_t rows) { return gather_workspace(m, rows); }

void run_columns(const ColumnsOps& ops, const MatmulArgs& args, const Semi24View& w,
                 const Executor& executor) {
  if (args.m == 0 || w.cols == 0) return;
  ops.runs->add();
  const ColumnsJob job{args, w, GatherPanels(args.m), reinterpret_cast<float*>(args.workspace)};
  const std::int64_t eights = gather_depth(w.rows) / kGatherLanes;
  for_units(
      w, eights, core::ceil_div(w.groups(), kColumnsGroups), executor,
      [&](std::int64_t begin, std::int64_t end) {
        ops.pack_dy(job, begin * kGatherLanes, end * kGatherLanes);
      },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

std::size_t spread_workspace(std::int64_t m, std::int64_t rows) {
  return static_cast<std::size_t>(core::round_up(m, kSpreadLanes) * rows) * sizeof(float);
}

void run_spread(const SpreadOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  if (args.m == 0 || w.cols == 0) return;
  ops.runs->add();
  const SpreadJob job{args, w, reinterpret_cast<float*>(args.workspace)};
  for_units(
      w, w.rows, core::ceil_div(w.groups(), kSpreadGroups), executor,
      [&](std::int64_t begin, std::int64_t end) { ops.pack_dy(job, begin, end); },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

std::size_t scatter_workspace(std::int64_t rows) {
  return static_cast<std::size_t>(kScatterTokens * rows) * sizeof(float);
}

void run_scatter(const ScatterOps& ops, const MatmulArgs& args, const Semi24View& w,
                 const Executor& executor) {
  if (args.m == 0 || w.cols == 0) return;
  ops.runs->add();
  const ScatterJob job{args, w, reinterpret_cast<float*>(args.workspace)};
  for_units(
      w, w.rows, core::ceil_div(w.groups(), kScatterGroups), executor,
      [&](std::int64_t begin, std::int64_t end) { ops.pack_dy(job, begin, end); },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

}  // namespace sparseloom::kernels::cpu

#endif
