// Launches for a change of topology: one kernel rebuilds the index tables (topology.cuh), two others move the
// values with their blocks, from their old slots to the new ones.
#include <bit>
#include <utility>

#include "kernels/shared/bsr/topology.cuh"
#include "kernels/shared/bsr/topology.h"
#include "runtime/cuda.h"
#include "sparseloom/topology.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kMoveThreads = 256;
constexpr std::int64_t kEach = 4;  // words in flight per thread
// Upper bound of the static shared memory of the topology kernel.
constexpr std::size_t kStaticBytes = 1024;
constexpr std::size_t kUnasked = 48 << 10;  // more dynamic shared memory has to be requested

std::size_t scratch_bytes(std::int64_t block_rows, std::int64_t block_cols) {
  const int rows = static_cast<int>(block_rows), cols = static_cast<int>(block_cols);
  return static_cast<std::size_t>(topology::BitTable(rows, cols).bytes() +
                                  topology::BitTable(cols, rows).bytes());
}

/// Direction of a move: the blocks that change slots go to the workspace, or from there to their new slots,
/// with zeros for new blocks. Blocks that keep their slots, and slots that stay free, are not touched.
enum class Way { out, back };

/// grid.x * threads * kEach covers the words of all slots.
template <class Word, Way kWay>
__global__ void __launch_bounds__(kMoveThreads)
    move_kernel(Word* __restrict__ values, Word* __restrict__ workspace,
                const std::int32_t* __restrict__ source, std::int64_t blocks, std::int64_t block_words,
                int shift) {
  const std::int64_t words = blocks * block_words,
                     first = std::int64_t{blockIdx.x} * kMoveThreads * kEach + threadIdx.x;
  Word moved[kEach];
  bool writes[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t v = first + u * kMoveThreads;
    moved[u] = Word{};
    writes[u] = false;
    if (v >= words) continue;
    const std::int64_t slot = shift >= 0 ? v >> shift : v / block_words;
    const std::int32_t old = __ldg(source + slot);
    const bool comes = old >= 0 && old < blocks;
    writes[u] = comes ? old != slot : kWay == Way::back && old != kSlotStaysFree;
    if (!comes || !writes[u]) continue;
    moved[u] = kWay == Way::out ? values[old * block_words + (v - slot * block_words)] : workspace[v];
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (writes[u]) (kWay == Way::out ? workspace : values)[first + u * kMoveThreads] = moved[u];
}

template <class Word>
cudaError_t move(void* values, void* workspace, const std::int32_t* source, std::int64_t blocks,
                 std::int64_t block_bytes, cudaStream_t stream) {
  const auto block_words = block_bytes / static_cast<std::int64_t>(sizeof(Word));
  const auto unsigned_words = static_cast<std::uint64_t>(block_words);
  const int shift = std::has_single_bit(unsigned_words) ? std::countr_zero(unsigned_words) : -1;
  const std::int64_t grid = (blocks * block_words + kMoveThreads * kEach - 1) / (kMoveThreads * kEach);
  auto *const from = static_cast<Word*>(values), *const to = static_cast<Word*>(workspace);
  // The values are not written before the second launch: if it fails, they are intact.
  move_kernel<Word, Way::out><<<static_cast<unsigned>(grid), kMoveThreads, 0, stream>>>(
      from, to, source, blocks, block_words, shift);
  if (const cudaError_t error = cudaGetLastError()) return error;
  move_kernel<Word, Way::back><<<static_cast<unsigned>(grid), kMoveThreads, 0, stream>>>(
      from, to, source, blocks, block_words, shift);
  return cudaGetLastError();
}

}  // namespace

std::size_t sm80_set_topology_workspace(std::int64_t block_rows, std::int64_t block_cols,
                                        std::size_t shared_bytes) noexcept {
  const std::size_t bytes = scratch_bytes(block_rows, block_cols);
  return bytes + kStaticBytes <= shared_bytes ? 0 : bytes;
}

int sm80_set_topology(const std::uint8_t* mask, const TopologyTables& tables, std::int32_t* flags,
                      std::byte* workspace, int device, void* stream) noexcept {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  // Without cells there are no blocks: crow, ccol and the number of cells requested are all zero.
  if (tables.block_rows == 0 || tables.block_cols == 0) {
    constexpr std::int64_t kEntry = sizeof(std::int32_t);
    for (const auto& [list, entries] : {std::pair{tables.crow, tables.block_rows + 1},
                                        {tables.ccol, tables.block_cols + 1},
                                        {tables.requested, std::int64_t{1}}})
      if (const cudaError_t error =
              cudaMemsetAsync(list, 0, static_cast<std::size_t>(entries * kEntry), cuda_stream))
        return error;
    return cudaSuccess;
  }
  const bool outside = sm80_set_topology_workspace(tables.block_rows, tables.block_cols,
                                                   runtime::cuda_device(device).shared_bytes) > 0;
  const std::size_t shared = outside ? 0 : scratch_bytes(tables.block_rows, tables.block_cols);
  if (shared > kUnasked)
    if (const cudaError_t error = cudaFuncSetAttribute(
            topology::topology_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)))
      return error;
  topology::topology_kernel<<<1, topology::kThreads, shared, cuda_stream>>>(
      {mask, tables, outside ? workspace : nullptr, flags});
  return cudaGetLastError();
}

int sm80_move_blocks(void* values, const std::int32_t* source, std::int64_t blocks, std::int64_t block_bytes,
                     std::byte* workspace, void* stream) noexcept {
  if (blocks == 0 || block_bytes == 0) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (std::countr_zero(reinterpret_cast<std::uintptr_t>(values) |
                           static_cast<std::uintptr_t>(block_bytes) | 16u)) {
    case 4: return move<uint4>(values, workspace, source, blocks, block_bytes, cuda_stream);
    case 3: return move<std::uint64_t>(values, workspace, source, blocks, block_bytes, cuda_stream);
    case 2: return move<std::uint32_t>(values, workspace, source, blocks, block_bytes, cuda_stream);
    case 1: return move<std::uint16_t>(values, workspace, source, blocks, block_bytes, cuda_stream);
    default: return move<std::uint8_t>(values, workspace, source, blocks, block_bytes, cuda_stream);
  }
}

}  // namespace sparseloom::kernels::cuda
