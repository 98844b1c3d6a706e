// The table of activations, and the fp64 formulas that the reference kernel and the passes on the CPU take.
#include "sparseloom/generic/scalar.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/case.h"
#include "sparseloom/plan.h"

namespace sparseloom::testing {
namespace {

// Exported programs hold the codes.
TEST(Activations, KeepTheirCodesAndNames) {
  const char* names[] = {"none", "relu", "gelu_erf", "gelu_tanh", "silu", "relu2"};
  for (int code = 0; code < static_cast<int>(std::size(names)); ++code)
    EXPECT_STREQ(kActivations[code].name, names[code]);
  for (int code = 0; code < kActivationCount; ++code) {
    EXPECT_EQ(static_cast<int>(kActivations[code].activation), code);
    EXPECT_STREQ(name_of(kActivations[code].activation), kActivations[code].name);
  }
}

TEST(Activations, HaveTheirValueAndDerivativeInFp64) {
  const double h = 1e-5;
  for (const Activation activation : activations()) {
    SCOPED_TRACE(name_of(activation));
    for (double x = -8.03; x < 8; x += 0.1) {
      EXPECT_NEAR(kernels::activate(activation, x), activate(activation, x), 1e-13 * (1 + x * x));
      EXPECT_NEAR(kernels::slope(activation, x),
                  (activate(activation, x + h) - activate(activation, x - h)) / (2 * h), 1e-8)
          << x;
    }
    if (activation == Activation::none || activation == Activation::relu)
      continue;  // 1 at a NaN, as in torch
    EXPECT_TRUE(std::isnan(kernels::slope(activation, std::numeric_limits<double>::quiet_NaN())));
  }
}

}  // namespace
}  // namespace sparseloom::testing
