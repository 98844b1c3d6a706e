// sparsify: checks, and the selection for each dtype.
#include <cmath>
#include <string>

#include "core/check.h"
#include "sparseloom/sparsifiers.h"
#include "sparsifiers/blocking.h"
#include "sparsifiers/check.h"
#include "sparsifiers/chunk_reader.h"
#include "sparsifiers/materialising.h"
#include "sparsifiers/sink.h"
#include "sparsifiers/streaming.h"

namespace sparseloom {
namespace sparsifiers {

ReadCounters& read_counters() noexcept {
  static constinit ReadCounters counters;
  return counters;
}

constexpr const char* kOp = "sparsify";

void require_valid(const ConstMatrixView& dense, const SparsifierSpec& spec) {
  if (is_scaled(dense.dtype))
    core::fail(kOp, "a matrix of dtype f32, f16, bf16 or f64", name_of(dense.dtype),
               "sparsify it before it is quantized");
  if (dense.rows < 0 || dense.cols < 0 || dense.stride < dense.cols)
    core::fail(kOp, "a matrix with a row stride of at least its columns",
               core::shape(dense.rows, dense.cols) + " with rows " + std::to_string(dense.stride) + " apart",
               "strides count elements; copy a transposed matrix first");
  core::require_known(kOp, "dtype", dense.dtype, DType::f8e4m3);
  core::require_known(kOp, "selection", spec.selection, Selection::per_block_nm);
  core::require_memory(kOp, {{"dense", dense.data, dense.rows > 0 && dense.cols > 0}});
  const bool threshold = spec.selection == Selection::scalar_threshold;
  if (threshold && !(spec.amount >= 0))
    core::fail(kOp, "a threshold >= 0", std::to_string(spec.amount), "pass 0 to keep what is not zero");
  if (!threshold && !(spec.amount >= 0 && spec.amount <= 1))
    core::fail(kOp, "a fraction in [0, 1]", std::to_string(spec.amount),
               "pass the share to remove, 0.9 for 90 %");
  if (spec.block_rows < 1 || spec.block_cols < 1)
    core::fail(kOp, "block sides >= 1", core::shape(spec.block_rows, spec.block_cols),
               "pass a block's sides");
  if (spec.n < 1 || spec.n > spec.m)
    core::fail(kOp, "1 <= n <= m", "n=" + std::to_string(spec.n) + " and m=" + std::to_string(spec.m),
               "pass how many of m elements stay");
}

namespace {

template <class T>
void run_as(const ConstMatrixView& dense, const SparsifierSpec& spec, const SparsifierResult& result,
            const Executor& executor, std::pmr::memory_resource* scratch) {
  const Run<T> run{dense, spec, {result.mask, static_cast<T*>(result.values)}, executor, scratch};
  switch (spec.selection) {
    case Selection::keep_all:
    case Selection::random_fraction:
    case Selection::scalar_threshold: return stream(run);
    case Selection::scalar_fraction: return scalar_fraction(run);
    case Selection::blockwise_fraction: return blockwise_fraction(run);
    case Selection::per_block_nm: return per_block_nm(run);
  }
}

}  // namespace
}  // namespace sparsifiers

void sparsify(const ConstMatrixView& dense, const SparsifierSpec& spec, const SparsifierResult& result,
              const Executor& executor, std::pmr::memory_resource* scratch) {
  using namespace sparsifiers;
  if (executor.device >= 0)
    core::fail(kOp, "a matrix on the CPU", "one on cuda:" + std::to_string(executor.device),
               "lend a workspace (sparsifier_ops.h)");
  require_valid(dense, spec);
  core::require_memory(kOp, {{"scratch", scratch}});
  if (is_empty(dense, result)) return;
  switch (dense.dtype) {
    case DType::f32: return run_as<float>(dense, spec, result, executor, scratch);
    case DType::f16: return run_as<core::F16>(dense, spec, result, executor, scratch);
    case DType::bf16: return run_as<core::Bf16>(dense, spec, result, executor, scratch);
    case DType::f64: return run_as<double>(dense, spec, result, executor, scratch);
    case DType::i8:
    case DType::f8e4m3: break;
  }
}

SparsifierReads sparsifier_reads() noexcept {
  const sparsifiers::ReadCounters& counters = sparsifiers::read_counters();
  SparsifierReads reads{counters.elements.load(std::memory_order_relaxed),
                        counters.bytes.load(std::memory_order_relaxed)};
  if (const auto on_gpus = counters.on_gpus.load(std::memory_order_relaxed)) {
    const SparsifierReads more = on_gpus();
    reads.elements += more.elements, reads.bytes += more.bytes;
  }
  return reads;
}

}  // namespace sparseloom
