#include "sparseloom/generic/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/rng.h"

namespace sparseloom::core {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

static_assert(to_f16(65504.0f).bits == 0x7bff && to_f16(65519.996f).bits == 0x7bff &&
              to_f16(65520.0f).bits == 0x7c00);
static_assert(to_bf16(1.0f).bits == 0x3f80 && to_f32(Bf16{0xc049}) == -3.140625f);
static_assert(to_bf16(1.00390625f).bits == 0x3f80 && to_bf16(1.01171875f).bits == 0x3f82, "ties go to even");

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Widening written from the definition of the formats, (-1)^s 2^(e - bias) (1 + f), not by moving bits.
float by_definition(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction ? std::numeric_limits<float>::quiet_NaN()
                    : static_cast<float>(sign * static_cast<double>(kInf));
  }
  const double significand = fraction + (exponent ? 1 << fraction_bits : 0);
  return static_cast<float>(sign * std::ldexp(significand, (exponent ? exponent : 1) - bias - fraction_bits));
}

TEST(Half, WidensAllValuesByDefinition) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float f16 = by_definition(bits, 5, 10), bf16 = by_definition(bits, 8, 7);
    if (std::isnan(f16)) {
      ASSERT_TRUE(std::isnan(to_f32(F16{bits}))) << i;
    } else {
      ASSERT_EQ(bits_of(to_f32(F16{bits})), bits_of(f16)) << i;
    }
    if (std::isnan(bf16)) {
      ASSERT_TRUE(std::isnan(to_f32(Bf16{bits}))) << i;
    } else {
      ASSERT_EQ(bits_of(to_f32(Bf16{bits})), bits_of(bf16)) << i;
    }
  }
}

TEST(Half, RoundTripsAllValues) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const bool f16_nan = (bits & 0x7fff) > 0x7c00, bf16_nan = (bits & 0x7fff) > 0x7f80;
    ASSERT_EQ(to_f16(to_f32(F16{bits})).bits, f16_nan ? bits | 0x200 : bits)
        << i;  // a NaN comes back quiet, its payload kept
    ASSERT_EQ(to_bf16(to_f32(Bf16{bits})).bits, bf16_nan ? bits | 0x40 : bits) << i;
    ASSERT_EQ(to_f16(static_cast<double>(to_f32(F16{bits}))).bits, f16_nan ? bits | 0x200 : bits) << i;
    ASSERT_EQ(to_bf16(static_cast<double>(to_f32(Bf16{bits}))).bits, bf16_nan ? bits | 0x40 : bits) << i;
  }
}

/// For each finite value and its upper neighbour: the value, the middle and both sides of the middle must
/// round to the nearest, the middle to the one with an even last bit.
template <class Half>
void expect_nearest_even(std::uint16_t largest, Half (*narrow)(float)) {
  for (std::uint32_t bits = 0; bits < largest; ++bits) {
    const Half low{static_cast<std::uint16_t>(bits)}, high{static_cast<std::uint16_t>(bits + 1)};
    const float middle =
        static_cast<float>((static_cast<double>(to_f32(low)) + static_cast<double>(to_f32(high))) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      const Half even = bits % 2 ? high : low;
      ASSERT_EQ(narrow(sign * middle).bits, even.bits | sign_bit) << bits;
      ASSERT_EQ(narrow(sign * std::nextafter(middle, 0.0f)).bits, low.bits | sign_bit) << bits;
      ASSERT_EQ(narrow(sign * std::nextafter(middle, kInf)).bits, high.bits | sign_bit) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEvenBetweenAllNeighbours) {
  expect_nearest_even<F16>(0x7bff, [](float x) { return to_f16(x); });
  expect_nearest_even<Bf16>(0x7f7f, [](float x) { return to_bf16(x); });
}

TEST(Half, KeepsNanAndInf) {
  for (const std::uint32_t payload :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffff0000u, 0x7f80ffffu}) {
    const float nan = std::bit_cast<float>(payload);
    EXPECT_TRUE(std::isnan(to_f32(to_f16(nan)))) << payload;
    EXPECT_TRUE(std::isnan(to_f32(to_bf16(nan)))) << payload;
  }
  EXPECT_EQ(to_f32(to_f16(kInf)), kInf);
  EXPECT_EQ(to_f32(to_bf16(-kInf)), -kInf);
  EXPECT_EQ(to_f32(to_bf16(std::numeric_limits<float>::max())), kInf);
  EXPECT_EQ(to_f32(to_f16(-1e30f)), -kInf);
  EXPECT_EQ(to_f16(1e300).bits, 0x7c00);
  EXPECT_EQ(to_bf16(-1e300).bits, 0xff80);
  EXPECT_EQ(to_bf16(-1e-300).bits, 0x8000);
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000);
}

// 1 + 2^-11 + 2^-40 lies just above a tie of fp16: through the nearest fp32 it would become the tie and round
// down.
TEST(Half, RoundsOnceFromDouble) {
  EXPECT_EQ(to_f16(1 + 0x1p-11 + 0x1p-40).bits, 0x3c01);
  EXPECT_EQ(to_f16(1 + 0x1p-11 - 0x1p-40).bits, 0x3c00);
  EXPECT_EQ(to_f16(static_cast<float>(1 + 0x1p-11 + 0x1p-40)).bits, 0x3c00);
  EXPECT_EQ(to_bf16(-(1 + 0x1p-8 + 0x1p-40)).bits, 0xbf81);
  EXPECT_EQ(to_bf16(1 + 0x1p-8 - 0x1p-40).bits, 0x3f80);
}

#if defined(__aarch64__)
using NativeHalf = __fp16;  // g++ 12 has no _Float16 in C++ there
#elif defined(__FLT16_MAX__)
using NativeHalf = _Float16;
#endif
#if defined(__aarch64__) || defined(__FLT16_MAX__)
TEST(Half, AgreesWithTheCompilersFloat16) {
  Rng rng(16);
  const auto expect_same = [](double x) {
    const auto narrow = static_cast<float>(x);
    ASSERT_EQ(to_f16(narrow).bits, std::bit_cast<std::uint16_t>(static_cast<NativeHalf>(narrow))) << narrow;
    ASSERT_EQ(to_f16(x).bits, std::bit_cast<std::uint16_t>(static_cast<NativeHalf>(x))) << x;
  };
  for (int i = 0; i < 200000; ++i) {
    const double significand = 1 + rng.uniform();
    expect_same(std::ldexp(rng.below(2) ? significand : -significand, static_cast<int>(rng.below(48)) - 30));
  }
}
#endif

}  // namespace
}  // namespace sparseloom::core
