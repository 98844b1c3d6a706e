// The two 16-bit floats as plain bits, and their exact conversions. The reference kernel and the tests round
// with these.
#pragma once

#include <bit>
#include <cstdint>

namespace sparseloom::core {

/// IEEE binary16 and bfloat16. These are our own types rather than _Float16 and __bf16: g++ 12 has the first
/// on some targets only and the second without arithmetic, and both depend on compiler flags, while these
/// depend on IEEE 754 only.
struct F16 {
  std::uint16_t bits = 0;
};
struct Bf16 {
  std::uint16_t bits = 0;
};

constexpr float to_f32(Bf16 x) noexcept { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

constexpr float to_f32(F16 x) noexcept {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t fraction = x.bits & 0x3ffu;
  if (exponent == 0x1f)
    return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));  // inf, NaN with its payload
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (fraction << 13));
  // Denormal or zero: exact, since fp32 holds 2^-24 as a normal number.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

/// Rounds to nearest even. A NaN stays a NaN and is made quiet: truncating its payload could leave the bits
/// of inf.
constexpr Bf16 to_bf16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  // A tie is carried up only when the kept part is odd.
  const std::uint32_t half_ulp_less_tie = 0x7fffu + ((bits >> 16) & 1u);
  // The carry may run into the exponent, up to inf; that is correct.
  return {static_cast<std::uint16_t>((bits + half_ulp_less_tie) >> 16)};
}

/// Rounds to nearest even, denormals included; 65520 and above become inf. A NaN stays a NaN and is made
/// quiet.
constexpr F16 to_f16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520: the tie above the largest, 65504
  if (magnitude >= 0x38800000u) {                         // from 2^-14 on: normal in fp16
    const std::uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    return {static_cast<std::uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13))};
  }
  if (magnitude <= 0x33000000u)
    return {static_cast<std::uint16_t>(sign)};  // 2^-25 is a tie with zero, which is even
  // Denormal: the 24-bit significand counts units of 2^(e - 150), where e is the biased exponent of fp32;
  // fp16 needs units of 2^-24.
  const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 .. 24
  const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t kept = significand >> shift;
  return {
      static_cast<std::uint16_t>(sign | ((significand + (1u << (shift - 1)) - 1 + (kept & 1u)) >> shift))};
}

/// Rounds fp64 to fp32 "to odd": the last bit is set if the result is inexact. Rounding that once more to 16
/// bits gives the same as one rounding from fp64 (Boldo & Melquiond 2008; fp32 keeps more than two bits
/// beyond fp16 and bf16). Rounding to nearest in both steps would round twice.
constexpr float round_to_odd(double x) noexcept {
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const double magnitude = x < 0 ? -x : x;
  const double rounded = nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest);
  if (rounded > magnitude) --bits;  // rounds toward zero; inf becomes the largest finite value
  return std::bit_cast<float>(bits | 1u);
}

constexpr Bf16 to_bf16(double x) noexcept { return to_bf16(round_to_odd(x)); }
constexpr F16 to_f16(double x) noexcept { return to_f16(round_to_odd(x)); }

}  // namespace sparseloom::core
