// The driver of the single kernel.
#if defined(__x86_64__)

#include "kernels/csr_linear/cpu/single.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/csr_linear/cpu/tasks.h"

namespace sparseloom::kernels::cpu {
namespace {

std::int64_t padded(std::int64_t size) { return core::round_up(size, kLineCells); }

std::int64_t dx_sums(const CsrView& w) {
  const std::int64_t chunks = dx_chunks(w, 1);
  return chunks * dx_sides(w, chunks);
}

template <class Body>
void for_rows(const CsrView& w, std::int64_t tasks, std::int64_t multiple, const Executor& executor,
              const Body& body) {
  tasks = std::min<std::int64_t>(tasks, Parts::kMost / kPartsOfTask);
  const std::int64_t parts = tasks == 1 ? 1 : kPartsOfTask * tasks;
  Parts shared(parts, tasks);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    shared.work(task, [&](std::int64_t part) {
      const Range rows = rows_of_part(w, part, parts, multiple);
      if (rows.begin < rows.end) body(rows);
    });
  });
}

}  // namespace

std::size_t single_workspace(const CsrView& w, Direction direction, DType dtype) {
  const bool widens = dtype != DType::f32;
  const std::int64_t of_rows = widens ? padded(w.rows) : 0, of_cols = widens ? padded(w.cols) : 0;
  const std::int64_t floats = direction == Direction::forward ? of_cols
                              : direction == Direction::dw    ? of_rows + of_cols
                                                              : of_rows + dx_sums(w) * padded(w.cols);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void run_single(const SingleOps& ops, const MatmulArgs& args, const CsrView& w, const Executor& executor) {
  ops.runs->add();
  const Direction direction = args.direction;
  const std::int64_t depth = direction == Direction::forward ? w.cols : w.rows;
  float* const a = reinterpret_cast<float*>(args.workspace);
  float* const b = args.dtype == DType::f32 ? a : a + padded(depth);
  const auto in_f32 = [&](const void* from, std::int64_t n, float* room) -> const float* {
    if (args.dtype == DType::f32) return static_cast<const float*>(from);
    ops.widen(args.dtype, from, n, room);
    return room;
  };
  const bool dw = direction == Direction::dw;
  const std::int64_t chunks = dx_chunks(w, 1);
  const SingleJob job{args, w,      in_f32(args.a, depth, a), dw ? in_f32(args.b, w.cols, b) : nullptr,
                      b,    chunks, dx_sides(w, chunks)};
  const std::int64_t tasks = csr_tasks(w, 1, executor);
  switch (direction) {
    case Direction::forward:
      return for_rows(w, tasks, kLineCells, executor,
                      [&](Range rows) { ops.forward(job, rows.begin, rows.end); });
    case Direction::dx:
      for_items(executor, tasks, job.chunks, [&](std::int64_t chunk) {
        const Range rows = rows_of_part(w, chunk, job.chunks, 1);
        ops.dx(job, chunk, rows.begin, rows.end);
      });
      return ops.write_dx(job, 0, w.cols);
    case Direction::dw:
      return for_rows(w, tasks, 1, executor, [&](Range rows) { ops.dw(job, rows.begin, rows.end); });
  }
}

}  // namespace sparseloom::kernels::cpu

#endif
