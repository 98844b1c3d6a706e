// The driver of the lanes kernels: packs operands into panels, then multiplies in work items of a panel and
// some rows.
#if defined(__x86_64__)

#include "kernels/csr_linear/cpu/lanes.h"

#include "core/check.h"
#include "kernels/csr_linear/cpu/tasks.h"

namespace sparseloom::kernels::cpu {
namespace {

constexpr std::int64_t kPackFeatures = 256;

/// Sizes of the buffers of a workspace, in floats; each begins at a cache line.
struct Sizes {
  std::int64_t tokens, panels, chunks, sides, a, b, sums, part;

  Sizes(const LanesOps& ops, const CsrView& w, Direction direction, bool own_sums, std::int64_t m,
        int vectors) {
    tokens = std::int64_t{vectors} * ops.lanes, panels = core::ceil_div(m, tokens);
    chunks = direction == Direction::dx ? dx_chunks(w, panels) : 1;
    sides = dx_sides(w, chunks);
    const std::int64_t all = panels * tokens;
    a = all * (direction == Direction::forward ? w.cols : w.rows);
    b = direction == Direction::dx   ? chunks * sides * all * core::round_up(w.cols, kGroup)
        : direction == Direction::dw ? all * w.cols
                                     : 0;
    const std::int64_t stored = direction == Direction::dw ? core::round_up(w.stored, kLineCells) : 0;
    sums = own_sums ? stored : 0, part = panels > kMostPanels ? stored : 0;
  }
};

void pack(const LanesOps& ops, const CsrPack& what, int vectors, std::int64_t panels, std::int64_t tasks,
          const Executor& executor) {
  const std::int64_t parts = core::ceil_div(what.depth, kPackFeatures);
  for_items(executor, tasks, panels * parts, [&](std::int64_t item) {
    const std::int64_t begin = item % parts * kPackFeatures;
    ops.pack(what, vectors, item / parts, begin, std::min(begin + kPackFeatures, what.depth));
  });
}

void forward(const LanesOps& ops, const CsrJob& job, std::int64_t tasks, const Executor& executor) {
  const std::int64_t parts = std::min(core::ceil_div(job.w.rows, kCsrOutputs),
                                      core::ceil_div(kPartsOfTask * tasks, job.panel_count));
  for_items(executor, tasks, job.panel_count * parts, [&](std::int64_t item) {
    const Range rows = rows_of_part(job.w, item % parts, parts, kCsrOutputs);
    if (rows.begin < rows.end) ops.forward(job, item / parts, rows.begin, rows.end);
  });
}

void dx(const LanesOps& ops, const CsrJob& job, std::int64_t tasks, const Executor& executor) {
  for_items(executor, tasks, job.panel_count * job.chunks, [&](std::int64_t item) {
    const std::int64_t chunk = item % job.chunks;
    const Range rows = rows_of_part(job.w, chunk, job.chunks, 1);
    ops.dx(job, item / job.chunks, chunk, rows.begin, rows.end);
  });
  const std::int64_t parts = core::ceil_div(job.w.cols, kPackFeatures);
  for_items(executor, tasks, job.panel_count * parts, [&](std::int64_t item) {
    const std::int64_t begin = item % parts * kPackFeatures;
    ops.write_dx(job, item / parts, begin, std::min(begin + kPackFeatures, job.w.cols));
  });
}

void dw(const LanesOps& ops, const CsrJob& job, std::int64_t tasks, const Executor& executor) {
  const std::int64_t parts = tasks == 1 ? 1 : kPartsOfTask * tasks;
  for_items(executor, tasks, parts, [&](std::int64_t part) {
    const Range rows = rows_of_part(job.w, part, parts, 1);
    if (rows.begin < rows.end) ops.dw(job, rows.begin, rows.end);
  });
}

bool sums_apart(DType dtype, bool accumulate) { return dtype != DType::f32 && !accumulate; }

}  // namespace

std::size_t lanes_workspace(const LanesOps& ops, const CsrView& w, Direction direction, DType dtype,
                            std::int64_t m, int vectors) {
  // A plan does not know whether dW will be accumulated.
  const Sizes sizes(ops, w, direction, sums_apart(dtype, false), m, vectors);
  return static_cast<std::size_t>(sizes.a + sizes.b + sizes.sums + sizes.part) * sizeof(float);
}

void run_lanes(const LanesOps& ops, const MatmulArgs& args, const CsrView& w, int vectors,
               const Executor& executor) {
  ops.runs->add();
  const Direction direction = args.direction;
  const Sizes sizes(ops, w, direction, sums_apart(args.dtype, args.accumulate), args.m, vectors);
  float* const a = reinterpret_cast<float*>(args.workspace);
  float *const b = a + sizes.a, *const sums = b + sizes.b;
  const CsrJob job{args, w, vectors, sizes.panels, a, b, sums, sums + sizes.sums, sizes.chunks, sizes.sides};
  const std::int64_t tasks = csr_tasks(w, vectors * sizes.panels, executor);
  const std::int64_t depth = direction == Direction::forward ? w.cols : w.rows;
  pack(ops, {args.a, args.a_stride, args.m, depth, args.dtype, job.a}, vectors, sizes.panels, tasks,
       executor);
  if (direction == Direction::dw)
    pack(ops, {args.b, args.b_stride, args.m, w.cols, args.dtype, job.b}, vectors, sizes.panels, tasks,
         executor);
  switch (direction) {
    case Direction::forward: return forward(ops, job, tasks, executor);
    case Direction::dx: return dx(ops, job, tasks, executor);
    case Direction::dw: return dw(ops, job, tasks, executor);
  }
}

}  // namespace sparseloom::kernels::cpu

#endif
