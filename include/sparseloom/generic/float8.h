// The 8-bit float as plain bits, and its exact conversion to fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace sparseloom::core {

/// OCP E4M3 ("fn": finite): a sign bit, 4 exponent bits (bias 7), 3 fraction bits. It has no infinity; a
/// value is NaN when all bits but the sign are one.
struct F8E4M3 {
  std::uint8_t bits = 0;
};

constexpr float to_f32(F8E4M3 x) noexcept {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x80u} << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8)  // denormal or zero: exact, since fp32 holds 2^-9 as a normal number
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

}  // namespace sparseloom::core
