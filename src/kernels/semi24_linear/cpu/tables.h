// What a byte of positions, which holds two groups, means in vectors.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cpu {

struct ExpandTables {
  /// For each byte, the source lane of each of the eight columns, a byte for each: which of the four stored
  /// elements it takes, or 4, where the vector of sources is zero.
  std::uint64_t lanes[256];
  /// For each half byte, the columns of its group that are stored, as a bit each; and the same four bits up.
  std::uint8_t low[16], high[16];
};

inline constexpr ExpandTables kExpandTables = [] {
  ExpandTables tables{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned column[4] = {byte & 3u, byte >> 2 & 3u, 4 + (byte >> 4 & 3u), 4 + (byte >> 6)};
    std::uint64_t lanes = 0x0404040404040404;
    for (unsigned i = 0; i < 4; ++i)
      lanes = (lanes & ~(std::uint64_t{0xff} << (8 * column[i]))) | std::uint64_t{i} << (8 * column[i]);
    tables.lanes[byte] = lanes;
  }
  for (unsigned half = 0; half < 16; ++half) {
    tables.low[half] = static_cast<std::uint8_t>(1u << (half & 3u) | 1u << (half >> 2));
    tables.high[half] = static_cast<std::uint8_t>(tables.low[half] << 4);
  }
  return tables;
}();

}  // namespace sparseloom::kernels::cpu
