// The driver of AVX2's kernels.
#if defined(__x86_64__)

#include "kernels/semi24_linear/cpu/packed.h"

#include "kernels/semi24_linear/cpu/tasks.h"

namespace sparseloom::kernels::cpu {

std::size_t packed_workspace(const PackedOps& ops, std::int64_t m, std::int64_t rows, std::int64_t cols) {
  const std::int64_t features = ops.direction == Direction::forward ? cols : rows;
  return static_cast<std::size_t>(ops.floats(m, features)) * sizeof(float);
}

void run_packed(const PackedOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor) {
  const bool forward = ops.direction == Direction::forward;
  const std::int64_t features = forward ? w.cols : w.rows, outputs = forward ? w.rows : w.groups();
  if (args.m == 0 || outputs == 0) return;
  ops.runs->add();
  const PackedJob job{args, w, reinterpret_cast<float*>(args.workspace)};
  for_units(
      w, core::ceil_div(features, ops.step), core::ceil_div(outputs, ops.unit), executor,
      [&](std::int64_t begin, std::int64_t end) { ops.pack(job, begin * ops.step, end * ops.step); },
      [&](std::int64_t begin, std::int64_t end) { ops.units(job, begin, end); });
}

}  // namespace sparseloom::kernels::cpu

#endif
