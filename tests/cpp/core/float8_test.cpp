#include "sparseloom/generic/float8.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sparseloom::core {
namespace {

// From the format's definition, by other arithmetic than the code's.
TEST(Float8, EveryBitPattern) {
  for (int bits = 0; bits < 256; ++bits) {
    const float actual = to_f32(F8E4M3{static_cast<std::uint8_t>(bits)});
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 15 && fraction == 7) {
      EXPECT_TRUE(std::isnan(actual)) << bits;
      continue;
    }
    const double magnitude = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    EXPECT_EQ(actual, bits & 128 ? -magnitude : magnitude) << bits;
    EXPECT_EQ(std::signbit(actual), bits >= 128) << bits;
  }
  EXPECT_EQ(to_f32(F8E4M3{0x7e}), 448.0f);
}

}  // namespace
}  // namespace sparseloom::core
