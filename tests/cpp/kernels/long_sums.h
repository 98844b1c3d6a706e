// Whether sums of very many products are added up as exactly as a blocked dense product does it, where a
// tolerance for single outputs would let most of a lost digit pass.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace sparseloom::testing {

/// The errors of many outputs of a kernel against fp64, beside those of plain fp32 sums in chains of kChain
/// additions. One register's chain of n additions errs sqrt(n / kChain) times as much.
class LongSums {
 public:
  static constexpr std::int64_t kChain = 1024;

  /// One output of n terms: what the kernel wrote, and factors(i), the two factors of term i.
  template <class Factors>
  void add(double got, std::int64_t n, Factors factors) {
    double exact = 0;
    float whole = 0, part = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto [a, b] = factors(i);
      exact += static_cast<double>(a) * static_cast<double>(b);
      part = std::fma(static_cast<float>(a), static_cast<float>(b), part);
      if ((i + 1) % kChain == 0) whole += part, part = 0;
    }
    whole += part;
    kernel_ += (got - exact) * (got - exact);
    const double error = static_cast<double>(whole) - exact;
    plain_ += error * error;
    ++outputs_;
  }

  /// The root of the mean square error is at most 1.25 times that of the chains: it is a mean over few
  /// outputs.
  void expect_short_chains(const std::string& what) const {
    ASSERT_GE(outputs_, 32) << what << ": too few for a mean";
    const auto outputs = static_cast<double>(outputs_);
    EXPECT_LE(std::sqrt(kernel_ / outputs), 1.25 * std::sqrt(plain_ / outputs)) << what;
  }

 private:
  double kernel_ = 0, plain_ = 0;
  std::int64_t outputs_ = 0;
};

}  // namespace sparseloom::testing
