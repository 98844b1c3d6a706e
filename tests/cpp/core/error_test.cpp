#include "sparseloom/error.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "core/check.h"

namespace sparseloom {
namespace {

TEST(Error, CarriesItsFourPartsAndReadsAsOneSentence) {
  const Error error("linear", "x with 64 columns", "48", "pass in_features columns");
  EXPECT_EQ(error.op(), "linear");
  EXPECT_EQ(error.expected(), "x with 64 columns");
  EXPECT_EQ(error.actual(), "48");
  EXPECT_EQ(error.remedy(), "pass in_features columns");
  EXPECT_STREQ(error.what(), "[linear] expected x with 64 columns, got 48; pass in_features columns");
}

TEST(Error, IsCaughtAsARuntimeErrorAndCopied) {
  try {
    core::fail("op", "this", "that", "do so");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "[op] expected this, got that; do so");
    const Error copy = dynamic_cast<const Error&>(error);
    EXPECT_EQ(copy.remedy(), "do so");
    return;
  }
  FAIL() << "fail() returned";
}

TEST(Check, RoundsUp) {
  for (std::int64_t a = 0; a <= 40; ++a) {
    for (std::int64_t b = 1; b <= 9; ++b) {
      const std::int64_t quotient = core::ceil_div(a, b);
      EXPECT_TRUE(quotient * b >= a && quotient * b < a + b) << a << " / " << b;
      EXPECT_EQ(core::round_up(a, b), quotient * b);
    }
  }
  EXPECT_EQ(core::shape(3, 5), "[3, 5]");
}

}  // namespace
}  // namespace sparseloom
