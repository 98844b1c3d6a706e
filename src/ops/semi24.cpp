// 2:4 copies and prunings on the executor's device.
#include "layout/semi24.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "core/check.h"
#include "ops/checks.h"
#include "ops/semi24_rows.h"
#include "plan/seen_indices.h"
#include "sparseloom/semi24_ops.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/semi24_linear/sm80/entries.h"
#include "runtime/cuda.h"
#endif

namespace sparseloom {
namespace {

using ops::for_rows;

void require_dense(const char* op, const ConstMatrixView& dense, const Executor& executor) {
  if (executor.device >= 0)
    core::fail(op, "a weight on the CPU", "one on " + ops::place(executor.device),
               "move it with .cpu(), and the result back");
  ops::require_matrix(op, dense);
}

}  // namespace

void semi24_pack(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                 const Executor& executor) {
  constexpr const char* op = "semi24_pack";
  require_dense(op, dense, executor);
  const bool stores = dense.rows > 0 && dense.cols > 0;
  core::require_memory(op, {{"values", values, stores}, {"positions", positions, stores}});
  if (!stores) return;  // however many rows have no element
  std::mutex mutex;
  layout::Semi24Excess first;  // the lowest row that has one, for any number of threads
  for_rows(executor, dense.rows, [&](std::int64_t begin, std::int64_t end) {
    const layout::Semi24Excess excess = layout::pack_rows(dense, values, positions, begin, end);
    if (excess.nonzeros == 0) return;
    std::lock_guard lock(mutex);
    if (excess.row < first.row) first = excess;
  });
  if (first.nonzeros > 0)
    core::fail(op, "at most two nonzeros in each group of four inputs",
               std::to_string(first.nonzeros) + " in row " + std::to_string(first.row) + ", group " +
                   std::to_string(first.group) + " (columns " + std::to_string(4 * first.group) + " to " +
                   std::to_string(std::min(4 * first.group + 3, dense.cols - 1)) + ")",
               "prune it first: semi24_prune(weight, \"magnitude\") gives the mask");
}

void semi24_require_valid(const char* op, const Semi24View& w, const std::uint64_t* writes) {
  static thread_local plan::SeenIndices seen;
  const std::int64_t bytes = w.positions == nullptr ? 0 : w.rows * w.position_bytes();
  if (writes == nullptr) return Semi24::validate(op, w);
  const plan::CountedList<std::uint8_t> index{
      {w.rows, w.cols, 0, {w.positions, static_cast<std::size_t>(bytes)}}, *writes};
  if (seen.contains(index)) return;
  Semi24::validate(op, w);
  seen.add(index);
}

void semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense,
                   const Executor& executor) {
  constexpr const char* op = "semi24_unpack";
  ops::require_matrix(op, dense);
  if (dense.rows != w.rows || dense.cols != w.cols)
    core::fail(op, "a matrix of " + core::shape(w.rows, w.cols), core::shape(dense.rows, dense.cols),
               "pass a matrix of the weight's shape");
  const bool stores = w.rows > 0 && w.cols > 0;
  core::require_memory(op, {{"values", values, stores}, {"positions", w.positions, stores}});
  if (executor.device >= 0) {
    ops::require_gpu(op, executor);
#ifdef SPARSELOOM_HAVE_CUDA
    const runtime::CudaDeviceScope scope(executor.device);
    ops::require_queued(op, kernels::cuda::semi24_unpack(w, values, dense, executor.stream), executor);
#endif
    return;
  }
  Semi24::validate(op, w);
  if (!stores) return;
  for_rows(executor, w.rows,
           [&](std::int64_t begin, std::int64_t end) { Semi24::unpack(w, values, dense, begin, end); });
}

void semi24_prune(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask, const Executor& executor) {
  constexpr const char* op = "semi24_prune";
  require_dense(op, w, executor);
  if (is_scaled(w.dtype))
    core::fail(op, "a weight of dtype f32, f16, bf16 or f64", name_of(w.dtype),
               "prune it before it is quantized");
  core::require_known(op, "pruning", pruning, Semi24Pruning::transposable_exact);
  core::require_memory(op, {{"mask", mask, w.rows > 0 && w.cols > 0}});
  if (w.cols == 0) return;
  for_rows(executor, w.rows,
           [&](std::int64_t begin, std::int64_t end) { layout::prune_rows(w, pruning, mask, begin, end); });
}

}  // namespace sparseloom
