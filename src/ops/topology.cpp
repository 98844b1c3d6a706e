// Changes of topology, and the values that move with them, on the executor's device.
#include "kernels/shared/bsr/topology.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"
#include "layout/tables.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

void require_workspace(const char* op, std::size_t bytes, std::span<std::byte> workspace) {
  if (!ops::lends(workspace, bytes, 16))
    core::fail(op, std::to_string(bytes) + " bytes of workspace, aligned to 16",
               std::to_string(workspace.size()) + " bytes", "lend them from an aligned allocation");
}

// Bytes of all blocks.
std::size_t bytes_of(const char* op, std::int64_t blocks, std::int64_t block_bytes) {
  std::int64_t bytes = 0;
  if (blocks < 0 || block_bytes < 0 || __builtin_mul_overflow(blocks, block_bytes, &bytes))
    core::fail(op, "blocks whose bytes are counted in 64 bits",
               std::to_string(blocks) + " blocks of " + std::to_string(block_bytes) + " bytes",
               "pass the bytes of one block");
  return static_cast<std::size_t>(bytes);
}

}  // namespace

std::size_t set_topology_workspace([[maybe_unused]] const TopologyTables& tables, const Executor& executor) {
  layout::require_grid("set_topology", tables);
  if (executor.device >= 0) ops::require_gpu("set_topology", executor);
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device >= 0)
    return kernels::cuda::sm80_set_topology_workspace(tables.block_rows, tables.block_cols,
                                                      runtime::cuda_device(executor.device).shared_bytes);
#endif
  return 0;
}

void set_topology(const std::uint8_t* mask, const TopologyTables& tables, std::span<std::byte> workspace,
                  const Executor& executor) {
  require_workspace("set_topology", set_topology_workspace(tables, executor), workspace);
  layout::require_tables("set_topology", mask, tables);
  if (executor.device < 0) return set_topology(mask, tables);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued("set_topology",
                      kernels::cuda::sm80_set_topology(mask, tables, nullptr, workspace.data(),
                                                       executor.device, executor.stream),
                      executor);
#endif
}

void move_blocks(void* values, std::int64_t block_bytes, std::span<const std::int32_t> moved,
                 std::span<std::byte> workspace, const Executor& executor) {
  const std::size_t bytes = bytes_of("move_blocks", std::ssize(moved), block_bytes),
                    size = static_cast<std::size_t>(block_bytes);
  require_workspace("move_blocks", bytes, workspace);
  core::require_memory("move_blocks", {{"values", values, bytes > 0}, {"moved", moved.data(), bytes > 0}});
  if (executor.device >= 0) ops::require_gpu("move_blocks", executor);
  if (bytes == 0) return;
  if (executor.device < 0) {
    std::memcpy(workspace.data(), values, bytes);
    auto* to = static_cast<std::byte*>(values);
    for (const std::int32_t from : moved) {
      if (from >= 0 && static_cast<std::size_t>(from) < moved.size())
        std::memcpy(to, workspace.data() + static_cast<std::size_t>(from) * size, size);
      else if (from != kSlotStaysFree)
        std::memset(to, 0, size);
      to += size;
    }
    return;
  }
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      "move_blocks",
      kernels::cuda::sm80_move_blocks(values, moved.data(), static_cast<std::int64_t>(moved.size()),
                                      block_bytes, workspace.data(), executor.stream),
      executor);
#endif
}

void update_topology(const std::uint8_t* mask, const TopologyTables& tables, std::int32_t* flags,
                     std::span<std::byte> workspace, const Executor& executor) {
  constexpr const char* op = "update_topology";
  require_workspace(op, set_topology_workspace(tables, executor), workspace);
  layout::require_tables(op, mask, tables);
  core::require_memory(op, {{"flags", flags}});
  if (executor.device < 0) return update_topology(mask, tables, flags);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op,
                      kernels::cuda::sm80_set_topology(mask, tables, flags, workspace.data(), executor.device,
                                                       executor.stream),
                      executor);
#endif
}

void choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags,
                   const Executor& executor) {
  constexpr const char* op = "choose_blocks";
  layout::require_grid(op, choice);
  if (executor.device >= 0) ops::require_gpu(op, executor);
  layout::require_choice(op, choice, mask, flags);
  if (executor.device < 0) return choose_blocks(choice, mask, flags);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::cuda::sm80_choose_blocks(choice, mask, flags, executor.stream), executor);
#endif
}

void clear_free_blocks(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end,
                       std::int64_t capacity, const Executor& executor) {
  constexpr const char* op = "clear_free_blocks";
  if (executor.device >= 0) ops::require_gpu(op, executor);
  if (bytes_of(op, capacity, block_bytes) == 0) return;
  core::require_memory(op, {{"blocks", blocks}, {"crow_end", crow_end}});
  if (executor.device < 0) {
    const auto live = std::clamp<std::int64_t>(*crow_end, 0, capacity);
    auto* const bytes = static_cast<std::byte*>(blocks);
    if (live < capacity)
      std::memset(bytes + live * block_bytes, 0, static_cast<std::size_t>((capacity - live) * block_bytes));
    return;
  }
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      op, kernels::cuda::sm80_clear_free_blocks(blocks, block_bytes, crow_end, capacity, executor.stream),
      executor);
#endif
}

}  // namespace sparseloom
