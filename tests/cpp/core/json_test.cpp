#include "core/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

namespace sparseloom::core {
namespace {

TEST(Json, EscapesWhatStringsMustNotHold) {
  EXPECT_EQ(json_string("plain: \xc3\xa9"), "\"plain: \xc3\xa9\"");
  EXPECT_EQ(json_string("a \"b\" \\c"), R"("a \"b\" \\c")");
  EXPECT_EQ(json_string("two\nlines\t\x01\x1f"), R"("two\u000alines\u0009\u0001\u001f")");
  EXPECT_EQ(json_string(""), "\"\"");
}

TEST(Json, WritesNumbersThatReadBackTheSame) {
  for (const double value :
       {0.0, -1.5, 0.1, 1e300, 5e-324, 123456789012345678.0, std::numeric_limits<double>::max()}) {
    EXPECT_EQ(std::strtod(json_number(value).c_str(), nullptr), value);
  }
}

TEST(Json, HasNoInfinity) {
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "null");
}

}  // namespace
}  // namespace sparseloom::core
