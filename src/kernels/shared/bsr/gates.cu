// The stored blocks whose gate is not zero, as a weight of their own: the index (gates_index.cuh), and in the
// same launch the values times their gates, kThreads * kEach vectors per thread block.
//
// Up to kFew blocks this is one launch, in which each thread block counts all of the gates; for more blocks a
// second launch reads the ranks that the first one wrote.
#include <bit>
#include <cstdint>

#include "core/check.h"
#include "kernels/shared/bsr/gates.h"
#include "kernels/shared/bsr/gates_index.cuh"
#include "kernels/shared/bsr/gates_words.cuh"

namespace sparseloom::kernels::cuda {
namespace gating {
namespace {

constexpr int kEach = 4;  // vectors of values in flight per thread

/// group: index of a run of kThreads * kEach vectors of the values. shift: log2 of a block's vectors.
template <class T, bool kVectors, class Place>
__device__ __forceinline__ void write_values(const Lists& lists, unsigned group, int shift,
                                             const Place& place_of) {
  using W = Words<T, kVectors>;
  const auto* values = static_cast<const T*>(lists.values);
  auto* gated = static_cast<T*>(lists.gated);
  const std::int64_t words = lists.blocks << shift,
                     first = std::int64_t{group} * kThreads * kEach + threadIdx.x;
  typename W::Word word[kEach];
  std::int32_t place[kEach];
  float gate[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t v = first + u * kThreads;
    place[u] = -1;
    if (v >= words) continue;
    gate[u] = __ldg(lists.gates + (v >> shift));
    place[u] = place_of(v >> shift);
    if (gate[u] != 0) word[u] = W::load(values + v * W::kCount);
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t v = first + u * kThreads, inside = v & ((std::int64_t{1} << shift) - 1);
    if (place[u] < 0) continue;
    W::store(gated + ((std::int64_t{place[u]} << shift) + inside) * W::kCount, W::times(gate[u], word[u]));
  }
}

/// The single launch for at most kFew blocks.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) few_kernel(const __grid_constant__ Lists lists, int shift) {
  if (blockIdx.x < lists.chunks) {
    write_rows(lists);
    return;
  }
  __shared__ LiveSet live;
  fill(live, lists.gates, lists.blocks);
  const auto place = [&](std::int64_t i) { return live.place(i); };
  const unsigned chunk = blockIdx.x - lists.chunks;
  if (chunk < lists.chunks)
    write_columns(lists, chunk, place);
  else
    write_values<T, kVectors>(lists, chunk - lists.chunks, shift, place);
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Lists lists) {
  write_rows(lists);
}

/// Runs after rows_kernel, whose ranks it reads.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) values_kernel(const __grid_constant__ Lists lists, int shift) {
  const auto place = [&](std::int64_t i) { return __ldg(lists.place + i); };
  if (blockIdx.x < lists.chunks)
    write_columns(lists, blockIdx.x, place);
  else
    write_values<T, kVectors>(lists, blockIdx.x - lists.chunks, shift, place);
}

template <class T, bool kVectors>
cudaError_t launch_blocks(const Lists& lists, std::int64_t elements, cudaStream_t stream) {
  const std::int64_t words = elements / Words<T, kVectors>::kCount;  // a power of two
  const unsigned groups = static_cast<unsigned>(core::ceil_div(lists.blocks * words, kThreads * kEach));
  const int shift = std::countr_zero(static_cast<std::uint64_t>(words));
  if (lists.blocks <= kFew) {
    few_kernel<T, kVectors><<<2 * lists.chunks + groups, kThreads, 0, stream>>>(lists, shift);
    return cudaGetLastError();
  }
  rows_kernel<<<lists.chunks, kThreads, 0, stream>>>(lists);
  if (const cudaError_t error = cudaGetLastError()) return error;
  values_kernel<T, kVectors><<<lists.chunks + groups, kThreads, 0, stream>>>(lists, shift);
  return cudaGetLastError();
}

}  // namespace
}  // namespace gating

int sm80_gate_blocks(const IndexView& index, const TransposedView& transposed, DType dtype,
                     const void* values, const float* gates, const GatedBlocks& gated,
                     void* stream) noexcept {
  using namespace gating;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  Lists lists;
  lists.blocks = index.blocks, lists.block_rows = index.block_rows(), lists.block_cols = index.block_cols();
  lists.crow = index.crow, lists.col = index.col;
  lists.ccol = transposed.ccol, lists.row = transposed.row, lists.slot = transposed.slot;
  lists.gates = gates, lists.values = values;
  lists.index = gated.index, lists.gated = gated.values, lists.place = gated.place;
  lists.at = index_segments(lists.block_rows, lists.block_cols, lists.blocks);
  lists.chunks = lists.blocks == 0 ? 1 : static_cast<unsigned>(core::ceil_div(lists.blocks, kChunk));
  const bool vectors = aligned(static_cast<const char*>(values), static_cast<const char*>(gated.values));
  return with_type(dtype, [&]<class T>(T) {
    const std::int64_t elements = index.block_elements();
    return vectors ? launch_blocks<T, true>(lists, elements, cuda_stream)
                   : launch_blocks<T, false>(lists, elements, cuda_stream);
  });
}

}  // namespace sparseloom::kernels::cuda
