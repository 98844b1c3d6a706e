// amx_tile on emulated tiles: the kernel's own code, drivers included, on any machine with AVX-512 BF16 (its
// packing uses that).
#pragma once

#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/bsr_linear/verb.h"

namespace sparseloom::testing {

/// The same operations, tiles in memory. See amx_emulated_tiles.h.
extern const kernels::cpu::TileOps kEmulatedTile, kEmulatedInt8Tile;

/// Whether the calling thread holds configured tiles.
bool emulated_tiles_in_use();

/// old + the sum of a[i] b[i], i of 32, as one emulated TDPBF16PS gives it.
float emulated_dot(const std::uint16_t* a, const std::uint16_t* b, float old);

/// int8's of both: tiles are of one translation unit.
bool emulated_int8_tiles_in_use();
const kernels::ScaledKernel& emulated_amx_int8_kernel();

/// A row as amx_tile's, called amx_tile_emulated. Refuses what that refuses, and machines below avx512_bf16.
const kernels::Kernel& emulated_amx_kernel();

}  // namespace sparseloom::testing
