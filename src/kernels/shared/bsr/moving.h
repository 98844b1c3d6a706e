// Topologies of any number of blocks up to a capacity, on the device (sparseloom/topology.h). The functions
// queue one launch each on `stream`, a cudaStream_t, and return its cudaError_t.
#pragma once

#include <cstdint>

#include "sparseloom/topology.h"

namespace sparseloom::kernels::cuda {

/// sparseloom::choose_blocks, for grids of fewer than 2^28 cells.
int sm80_choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags,
                       void* stream) noexcept;

/// sparseloom::clear_free_blocks.
int sm80_clear_free_blocks(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end,
                           std::int64_t capacity, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
