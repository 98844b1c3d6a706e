// sparsify on the executor's device, and the counts of elements that the kernels of all devices have read.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "core/check.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/sparsifier_ops.h"
#include "sparsifiers/check.h"
#include "sparsifiers/chunk_reader.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/shared/sparsify/sparsify.h"
#endif

namespace sparseloom {
namespace {

constexpr const char* kOp = "sparsify";

void check(const ConstMatrixView& dense, const SparsifierSpec& spec, const Executor& executor) {
  if (executor.device >= 0) ops::require_gpu(kOp, executor);
  sparsifiers::require_valid(dense, spec);
  const std::int64_t m = spec.selection == Selection::per_block_nm ? std::min(spec.m, dense.cols) : 0;
  if (executor.device >= 0 && m > std::numeric_limits<std::int32_t>::max())
    core::fail(kOp, "groups of fewer than 2^31 elements", std::to_string(m), "pass a smaller m");
}

#ifdef SPARSELOOM_HAVE_CUDA
// Devices whose kernels have run.
std::atomic<std::uint64_t> used{0};

SparsifierReads reads_on_gpus() noexcept {
  SparsifierReads all;
  for (int device = 0; device < 64; ++device) {
    if ((used.load(std::memory_order_relaxed) >> device & 1u) == 0) continue;
    const runtime::CudaDeviceScope scope(device);
    SparsifierReads reads;
    if (kernels::cuda::sm80_sparsifier_reads(reads) != 0) continue;
    all.elements += reads.elements, all.bytes += reads.bytes;
  }
  return all;
}
#endif

}  // namespace

std::size_t sparsify_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec,
                               const Executor& executor) {
  check(dense, spec, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device >= 0 && dense.rows > 0 && dense.cols > 0)
    return kernels::cuda::sm80_sparsify_workspace(dense, spec);
#endif
  return 0;
}

void sparsify(const ConstMatrixView& dense, const SparsifierSpec& spec, const SparsifierResult& result,
              std::span<std::byte> workspace, const Executor& executor) {
  const std::size_t bytes = sparsify_workspace(dense, spec, executor);
  if (!ops::lends(workspace, bytes, 16))
    core::fail(kOp, std::to_string(bytes) + " bytes of workspace, aligned to 16",
               std::to_string(workspace.size()) + " bytes", "lend them from an aligned allocation");
  if (executor.device < 0) return sparsify(dense, spec, result, executor);
  if (sparsifiers::is_empty(dense, result)) return;
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  used.fetch_or(std::uint64_t{1} << (executor.device % 64), std::memory_order_relaxed);
  sparsifiers::read_counters().on_gpus.store(&reads_on_gpus, std::memory_order_relaxed);
  const kernels::cuda::Sparsify call{dense,
                                     spec,
                                     result,
                                     workspace.data(),
                                     runtime::cuda_device(executor.device).multiprocessors,
                                     executor.device,
                                     executor.stream};
  ops::require_queued(kOp, kernels::cuda::sm80_sparsify(call), executor);
#endif
}

}  // namespace sparseloom
