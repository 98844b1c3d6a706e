// block_gradient_norms on the CPU against the norms of a gradient in fp64, and what it refuses.
#include "sparseloom/gradient_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "kernels/gradient_norms_case.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

std::vector<float> norms_of(NormsCase& c, BlockNorm norm, const Executor& executor) {
  Workspace workspace;
  std::vector<float> norms(c.cells(), -1);
  const std::size_t bytes = block_gradient_norms_workspace(c.dy_view(), c.x_view(), c.block, executor);
  block_gradient_norms(c.dy_view(), c.x_view(), c.block, norm, norms, workspace.at_least(bytes), executor);
  return norms;
}

class GradientNorms : public ::testing::TestWithParam<DType> {};

TEST_P(GradientNorms, AreThoseOfTheWholeGradient) {
  for (const auto& [m, rows, cols, block, padding] : {NormsShape{33, 70, 90, {16, 16}, 0},
                                                      {5, 64, 128, {64, 32}, 3},
                                                      {40, 130, 129, {128, 128}, 0},
                                                      {17, 33, 65, {32, 8}, 1},
                                                      {1, 8, 8, {8, 8}, 0}}) {
    NormsCase c(GetParam(), {m, rows, cols, block, padding});
    for (const BlockNorm norm : kNorms) {
      const std::vector<float> serial = norms_of(c, norm, Executor::serial());
      c.expect_close(serial, norm);
      EXPECT_EQ(norms_of(c, norm, Executor::pool(3)), serial);
    }
  }
}

// 16 MiB of the gradient exist at a time, so this one is cut, with a last strip of another height.
TEST_P(GradientNorms, OfALargeWeightComeInStrips) {
  NormsCase c(GetParam(), {3, 2200, 2050, {64, 64}, 0});
  c.expect_close(norms_of(c, BlockNorm::l2, Executor::pool(2)), BlockNorm::l2);
}

TEST_P(GradientNorms, OfNoTokensAreZero) {
  NormsCase c(GetParam(), {0, 40, 24, {16, 8}, 0});
  EXPECT_EQ(norms_of(c, BlockNorm::l1, Executor::serial()), std::vector<float>(c.cells(), 0.0f));
}

TEST_P(GradientNorms, OfABlockWithNanAreNan) {
  NormsCase c(GetParam(), {6, 32, 32, {16, 16}, 0});
  c.dy.set(2, 20, std::numeric_limits<double>::quiet_NaN());
  for (const BlockNorm norm : kNorms) {
    const std::vector<float> norms = norms_of(c, norm, Executor::serial());
    EXPECT_FALSE(std::isnan(norms[0]) || std::isnan(norms[1]));
    EXPECT_TRUE(std::isnan(norms[2]) && std::isnan(norms[3]));
  }
}

INSTANTIATE_TEST_SUITE_P(, GradientNorms, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(GradientNormsErrors, NameWhatDoesNotFit) {
  NormsCase c(DType::f32, {4, 16, 16, {16, 16}, 0}), other(DType::bf16, {4, 16, 16, {16, 16}, 0}),
      longer(DType::f32, {5, 16, 16, {16, 16}, 0});
  std::vector<float> norms(1);
  const auto call = [&](const ConstMatrixView& dy, const ConstMatrixView& x, std::span<float> out) {
    Workspace workspace;
    block_gradient_norms(dy, x, {16, 16}, BlockNorm::l2, out, workspace.at_least(1 << 20),
                         Executor::serial());
  };
  expect_error("block_gradient_norms", {"5 rows", "4"}, [&] { call(c.dy_view(), longer.x_view(), norms); });
  expect_error("block_gradient_norms", {"f32", "bf16"}, [&] { call(other.dy_view(), c.x_view(), norms); });
  expect_error("block_gradient_norms", {"1 norms", "0"}, [&] { call(c.dy_view(), c.x_view(), {}); });
  expect_error("block_gradient_norms", {"workspace", "0 bytes"}, [&] {
    block_gradient_norms(c.dy_view(), c.x_view(), {16, 16}, BlockNorm::l2, norms, {}, Executor::serial());
  });
}

}  // namespace
}  // namespace sparseloom::testing
