// The inner loops of one-shot pruning on the executor's device.
#include "sparseloom/one_shot.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "core/check.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/parallel.h"
#include "sparsifiers/column_sweep.h"
#include "sparsifiers/pair_swaps.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/shared/sparsify/sparsify.h"
#endif

namespace sparseloom {
namespace {

// Microseconds of one multiply-add of a sweep on one thread.
constexpr double kStepUs = 5e-4;

void check(const char* op, const ColumnSweep& sweep) {
  if (sweep.rows < 0 || sweep.cols < 0 || sweep.cols > kSweepColumns || sweep.stride < sweep.cols ||
      sweep.factor_stride < sweep.cols)
    core::fail(op, "rows of at most " + std::to_string(kSweepColumns) + " columns, at least as far apart",
               core::shape(sweep.rows, sweep.cols) + ", rows " + std::to_string(sweep.stride) + " and " +
                   std::to_string(sweep.factor_stride) + " apart",
               "sweep some columns after the others");
  if (sweep.m < 0 || sweep.m > kSweepGroup || sweep.n < 0 || sweep.n > sweep.m)
    core::fail(op, "0 <= n <= m <= " + std::to_string(kSweepGroup),
               "n=" + std::to_string(sweep.n) + " and m=" + std::to_string(sweep.m),
               "pass how many of m elements stay");
}

}  // namespace

void column_sweep(const ColumnSweep& sweep, const Executor& executor) {
  constexpr const char* op = "column_sweep";
  check(op, sweep);
  if (executor.device >= 0) ops::require_gpu(op, executor);
  if (sweep.rows == 0 || sweep.cols == 0) return;
  core::require_memory(
      op,
      {{"weights", sweep.weights}, {"factor", sweep.factor}, {"mask", sweep.mask}, {"errors", sweep.errors}});
  if (sweep.grid != SweepGrid::none) core::require_memory(op, {{"tops", sweep.tops}, {"pins", sweep.pins}});
  if (executor.device >= 0) {
#ifdef SPARSELOOM_HAVE_CUDA
    const runtime::CudaDeviceScope scope(executor.device);
    ops::require_queued(op, kernels::cuda::sm80_column_sweep(sweep, executor.stream), executor);
#endif
    return;
  }
  const double us = static_cast<double>(sweep.rows * sweep.cols * sweep.cols) * kStepUs;
  runtime::parallel_tasks(runtime::if_worth_it(executor, us), sweep.rows,
                          [&](std::int64_t row) { sparsifiers::sweep_row(sweep, row); });
}

std::int64_t swap_pairs(const PairSwaps& swaps, const Executor& executor) {
  constexpr const char* op = "swap_pairs";
  if (executor.device >= 0)
    core::fail(op, "a weight on the CPU", ops::place(executor.device), "copy weight, gram and mask to it");
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();  // cols + m is counted
  if (swaps.rows < 0 || swaps.cols < 0 || swaps.m < 0 || swaps.m > kLongest || swaps.most < 0)
    core::fail(op, "sizes of 0 or more, and groups of less than 2^31",
               core::shape(swaps.rows, swaps.cols) + ", m=" + std::to_string(swaps.m) +
                   ", most=" + std::to_string(swaps.most),
               "pass the sizes of one weight");
  if (swaps.rows == 0 || swaps.cols == 0) return 0;
  core::require_memory(
      op, {{"weights", swaps.weights}, {"values", swaps.values}, {"gram", swaps.gram}, {"mask", swaps.mask}});
  std::atomic<std::int64_t> all{0};
  runtime::parallel_for(executor, swaps.rows, [&](std::int64_t begin, std::int64_t end) {
    sparsifiers::SwappedRow row(swaps);
    std::int64_t done = 0;
    for (std::int64_t i = begin; i < end; ++i) done += row.improve(i);
    all.fetch_add(done, std::memory_order_relaxed);
  });
  return all.load();
}

}  // namespace sparseloom
