// What the register peaks multiply.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sparseloom::kernels::cpu {

/// Words that are a number of either sign as one fp32, as two bf16 of 1/8 to 2, and as four int8. Not zeros
/// or ones: a core whose power is capped multiplies those faster than it multiplies anything else: four tile
/// products of an Emerald Rapids take 24 ns of zeros at any time, of numbers 29 ns while the host lets it and
/// else 66 (105 with tiles loaded from L1). A share of zeros' peak would say nothing of a kernel. FMA and dot
/// products of a Zen 5 take the same time of either.
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
