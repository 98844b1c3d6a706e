// The positions of tiles (tiles.h) in the order of the hardware, and checks of their index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/tiles.h"

namespace sparseloom {

/// Bytes of tiles_order's result: 512 for each 64 x 64 of the 2:4 tiles.
SPARSELOOM_API std::int64_t tiles_metadata_bytes(const TilesView& w) noexcept;

/// metadata <- the positions in the order in which tensor cores read them beside 16-bit values, for
/// TilesView::metadata. It is made once when a weight moves to a CUDA device, and never stored. Both lie on
/// the executor's device, metadata aligned to 16 bytes. Throws Error without a CUDA device.
SPARSELOOM_API void tiles_order(const TilesView& w, std::byte* metadata, const Executor& executor);

/// Tiles::validate for an index in host memory, unless this thread has validated a table of this content
/// there: the kernels read inside of the operands for any positions. Throws Error as Tiles::validate.
SPARSELOOM_API void tiles_require_valid(const char* op, const TilesView& w);

}  // namespace sparseloom
