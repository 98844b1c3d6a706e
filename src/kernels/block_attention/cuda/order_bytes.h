// Room for the order of tiles.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cuda::attention {

/// Bytes of OrderParams's work and order, a multiple of 256.
inline std::int64_t order_bytes(std::int64_t tiles) noexcept { return (2 * tiles * 4 + 255) / 256 * 256; }

}  // namespace sparseloom::kernels::cuda::attention
