// The call of each selection, and the counts of what kernels read.
#include <atomic>

#include "kernels/shared/sparsify/calls.h"
#include "kernels/shared/sparsify/reader.cuh"
#include "kernels/shared/sparsify/sparsify.h"

namespace sparseloom::kernels::cuda {
namespace sparsify {
namespace {

__device__ Counters read_counters;

}  // namespace

Counters* counters() noexcept {
  constexpr int kMostDevices = 64;
  static std::atomic<void*> known[kMostDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMostDevices) return nullptr;
  void* at = known[device].load(std::memory_order_relaxed);
  if (at != nullptr) return static_cast<Counters*>(at);
  if (cudaGetSymbolAddress(&at, read_counters) != cudaSuccess) {
    cudaGetLastError();  // clear the error for the next caller
    return nullptr;
  }
  known[device].store(at, std::memory_order_relaxed);
  return static_cast<Counters*>(at);
}

}  // namespace sparsify

std::size_t sm80_sparsify_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec) noexcept {
  if (spec.selection == Selection::scalar_fraction) return sparsify::scalar_fraction_workspace(dense, spec);
  if (spec.selection == Selection::blockwise_fraction)
    return sparsify::blockwise_fraction_workspace(dense, spec);
  return 0;
}

int sm80_sparsify(const Sparsify& call) noexcept {
  switch (call.spec.selection) {
    case Selection::keep_all:
    case Selection::random_fraction:
    case Selection::scalar_threshold: return sparsify::stream(call);
    case Selection::scalar_fraction: return sparsify::scalar_fraction(call);
    case Selection::blockwise_fraction: return sparsify::blockwise_fraction(call);
    case Selection::per_block_nm: return sparsify::per_block_nm(call);
  }
  return cudaErrorInvalidValue;
}

int sm80_sparsifier_reads(SparsifierReads& reads) noexcept {
  sparsify::Counters counters{};
  const cudaError_t status = cudaMemcpyFromSymbol(&counters, sparsify::read_counters, sizeof(counters));
  if (status != cudaSuccess) cudaGetLastError();  // clear the error for the next caller
  reads = {static_cast<std::int64_t>(counters.elements), static_cast<std::int64_t>(counters.bytes)};
  return status;
}

}  // namespace sparseloom::kernels::cuda
