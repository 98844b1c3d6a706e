// Maps the positions of a group to masks.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cpu {

struct ExpandTables {
  /// For each half byte: a bit per stored column of its group; and the same four bits up.
  std::uint8_t low[16], high[16];
};

inline constexpr ExpandTables kExpandTables = [] {
  ExpandTables tables{};
  for (unsigned half = 0; half < 16; ++half) {
    tables.low[half] = static_cast<std::uint8_t>(1u << (half & 3u) | 1u << (half >> 2));
    tables.high[half] = static_cast<std::uint8_t>(tables.low[half] << 4);
  }
  return tables;
}();

}  // namespace sparseloom::kernels::cpu
