// Changes of topology, and what moves with them, on the executor's device.
#include "kernels/shared/bsr/topology.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"
#include "kernels/shared/bsr/moving.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

constexpr std::int64_t kMostCells = std::int64_t{1} << 28;

void require_workspace(const char* op, std::size_t bytes, std::span<std::byte> workspace) {
  if (workspace.size() < bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % 16 != 0)
    core::fail(op, std::to_string(bytes) + " bytes of workspace, aligned to 16",
               std::to_string(workspace.size()) + " bytes", "lend them from an aligned allocation");
}

// T: TopologyTables or BlockChoice.
template <class T>
void check(const char* op, const T& tables) {
  const std::int64_t r = tables.block_rows, c = tables.block_cols;
  if (r < 0 || c < 0 || r >= kMostCells || c >= kMostCells || r * c >= kMostCells)
    core::fail(op, "a grid of fewer than 2^28 blocks", core::shape(r, c), "use a larger block");
  if (tables.capacity < 0 || tables.capacity > r * c)
    core::fail(op, "tables of 0 to " + std::to_string(r * c) + " blocks, the cells of the grid",
               std::to_string(tables.capacity), "pass the tables that belong to this mask");
}

}  // namespace

std::size_t set_topology_workspace([[maybe_unused]] const TopologyTables& tables, const Executor& executor) {
  check("set_topology", tables);
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
  const auto size = static_cast<std::size_t>(block_bytes), bytes = moved.size() * size;
  require_workspace("move_blocks", bytes, workspace);
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
  if (flags == nullptr) core::fail(op, "flags", "null", "pass an int32 on the executor's device");
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
  check(op, choice);
  if (executor.device >= 0) ops::require_gpu(op, executor);
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
  if (capacity == 0 || block_bytes == 0) return;
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
