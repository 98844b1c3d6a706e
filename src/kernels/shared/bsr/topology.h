// A change of topology on the device, and topologies of any number of blocks up to a capacity
// (sparseloom/topology.h). The functions queue their launches on `stream`, a cudaStream_t, and return its
// cudaError_t.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/layout.h"
#include "sparseloom/topology.h"

namespace sparseloom::kernels::cuda {

/// sparseloom::set_topology on the device, or update_topology if `flags` is not null, in one launch, for
/// grids of fewer than 2^28 cells. workspace: sm80_set_topology_workspace bytes, which is 0 if the grid's
/// bits fit into `shared_bytes`, the device's limit per thread block.
std::size_t sm80_set_topology_workspace(std::int64_t block_rows, std::int64_t block_cols,
                                        std::size_t shared_bytes) noexcept;
int sm80_set_topology(const std::uint8_t* mask, const TopologyTables& tables, std::int32_t* flags,
                      std::byte* workspace, int device, void* stream) noexcept;

/// values[slot] <- values[source[slot]], or zero if source names no block, in two launches; slots whose
/// source is kSlotStaysFree are unchanged. A block is block_bytes long. workspace: as long as values.
int sm80_move_blocks(void* values, const std::int32_t* source, std::int64_t blocks, std::int64_t block_bytes,
                     std::byte* workspace, void* stream) noexcept;

/// sparseloom::choose_blocks, for grids of fewer than 2^28 cells.
int sm80_choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags,
                       void* stream) noexcept;

/// sparseloom::clear_free_blocks.
int sm80_clear_free_blocks(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end,
                           std::int64_t capacity, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
