// The numbers that the measurements of register peaks multiply.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sparseloom::kernels::cpu {

/// Words that are finite numbers of either sign, read as one fp32, as two bf16 of 1/8 to 2, or as four int8.
/// They are not zeros or ones, because a core whose power is capped multiplies those faster: measured for AMX
/// tile products of an Emerald Rapids, and not for FMA and dot products of a Zen 5. A kernel's fraction of a
/// peak measured on zeros would mean nothing.
template <std::size_t kCount>
constexpr std::array<std::uint32_t, kCount> spin_cells() {
  std::array<std::uint32_t, kCount> cells{};
  std::uint32_t state = 1;
  for (std::uint32_t& cell : cells) {  // xorshift32 (Marsaglia, 2003)
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    cell = (state & 0x81ff81ffu) | 0x3e003e00u;  // sign, two bits of the exponent, mantissa
  }
  return cells;
}

}  // namespace sparseloom::kernels::cpu
