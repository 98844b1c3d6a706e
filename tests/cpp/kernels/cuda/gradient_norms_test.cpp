// Block norms of a gradient by both kernels, against those of a gradient in fp64.
#include "sparseloom/gradient_norms.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/gradient_norms_case.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {
namespace {

std::vector<float> norms_of(NormsCase& c, BlockNorm norm) {
  const OnGpu dy(c.dy.bytes), x(c.x.bytes);
  const OnGpu norms(std::vector<std::byte>(c.cells() * sizeof(float), std::byte{0xff}));
  const auto there = [](const Matrix& matrix, const OnGpu& memory) {
    return ConstMatrixView{memory.get() + matrix.offset * static_cast<std::int64_t>(size_of(matrix.dtype)),
                           matrix.dtype, matrix.rows, matrix.cols, matrix.stride};
  };
  const Stream stream;
  block_gradient_norms(there(c.dy, dy), there(c.x, x), c.block, norm,
                       {reinterpret_cast<float*>(norms.get()), c.cells()}, {},
                       Executor::cuda(0, stream.get()));
  stream.wait();
  const std::vector<std::byte> bytes = norms.read();
  std::vector<float> found(c.cells());
  if (!found.empty()) std::memcpy(found.data(), bytes.data(), bytes.size());
  return found;
}

class CudaSmallGradientNorms : public ::testing::TestWithParam<DType> {};
class CudaGradientNorms : public ::testing::TestWithParam<DType> {};

void check(DType dtype, const std::vector<NormsShape>& shapes) {
  for (const NormsShape& shape : shapes) {
    NormsCase c(dtype, shape);
    for (const BlockNorm norm : kNorms) {
      const std::vector<float> found = norms_of(c, norm);
      c.expect_close(found, norm);
      EXPECT_EQ(norms_of(c, norm), found) << "other bits the second time";
    }
  }
}

TEST_P(CudaSmallGradientNorms, AreThoseOfTheWholeGradient) {
  check(GetParam(), {{70, 136, 264, {16, 16}, 0},
                     {65, 200, 520, {128, 64}, 0},
                     {3, 40, 24, {8, 32}, 8},
                     {33, 70, 90, {32, 16}, 3},
                     {1, 8, 8, {8, 8}, 0},
                     {64, 130, 129, {128, 128}, 1}});
}

// More tiles than multiprocessors, with an odd last strip of them.
TEST_P(CudaGradientNorms, OfManyTiles) {
  check(GetParam(), {{40, 2312, 2568, {64, 64}, 0}, {130, 264, 2312, {32, 32}, 0}});
}

TEST_P(CudaSmallGradientNorms, OfNoTokensAreZero) {
  NormsCase c(GetParam(), {0, 40, 24, {16, 8}, 0});
  EXPECT_EQ(norms_of(c, BlockNorm::l1), std::vector<float>(c.cells(), 0.0f));
}

TEST_P(CudaSmallGradientNorms, OfABlockWithNanAreNan) {
  for (const std::int64_t padding : {0, 1}) {
    NormsCase c(GetParam(), {6, 32, 32, {16, 16}, padding});
    c.dy.set(2, 20, std::numeric_limits<double>::quiet_NaN());
    for (const BlockNorm norm : kNorms) {
      const std::vector<float> norms = norms_of(c, norm);
      EXPECT_FALSE(std::isnan(norms[0]) || std::isnan(norms[1]));
      EXPECT_TRUE(std::isnan(norms[2]) && std::isnan(norms[3]));
    }
  }
}

// 3xTF32 leaves out what is below 2^-22 of a product; plain TF32 would be off by 2^-11.
TEST_P(CudaSmallGradientNorms, OfFp32AreNotRoundedToTf32) {
  if (GetParam() != DType::f32) return;
  NormsCase c(DType::f32, {1, 16, 16, {16, 16}, 0});
  for (std::int64_t i = 0; i < 16; ++i) c.dy.set(0, i, 1.0 + 0x1p-12), c.x.set(0, i, 1.0 + 0x1p-13);
  EXPECT_NEAR(norms_of(c, BlockNorm::max)[0], (1.0 + 0x1p-12) * (1.0 + 0x1p-13), 0x1p-21);
}

std::vector<DType> dtypes() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32, DType::f16, DType::bf16};
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallGradientNorms, ::testing::ValuesIn(dtypes()));
INSTANTIATE_TEST_SUITE_P(, CudaGradientNorms, ::testing::ValuesIn(dtypes()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallGradientNorms);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaGradientNorms);

}  // namespace
}  // namespace sparseloom::testing
