// The probes on a device: near what is expected of it, the same again, and nobody waits for them.
#include <cstdio>

#include "kernels/cuda/device_call.h"
#include "kernels/shared/cost/gpu_rates.h"

namespace sparseloom::testing {
namespace {

using kernels::cuda::expected_rates;
using kernels::cuda::sm80_measure_rates;

class CudaRates : public ::testing::TestWithParam<int> {
 protected:
  static constexpr double plan::GpuRates::*kFields[] = {
      &plan::GpuRates::memory_bytes, &plan::GpuRates::l2_bytes, &plan::GpuRates::tensor_flops};
  const runtime::CudaDevice& device_ = runtime::cuda_device(0);
  const runtime::CudaDeviceScope scope_{0};
};

TEST_P(CudaRates, AreTheSameAgain) {
  plan::GpuRates first, second;
  EXPECT_CUDA(sm80_measure_rates(device_, first));
  EXPECT_CUDA(sm80_measure_rates(device_, second));
  for (const auto field : kFields) {
    const double expected = expected_rates(device_).*field;
    std::printf("measured %.4g, again %.4g, expected %.4g\n", first.*field, second.*field, expected);
    EXPECT_NEAR(first.*field, second.*field, 0.05 * expected);
    EXPECT_GT(first.*field, kernels::cuda::kLeastOfExpected * expected);
    EXPECT_LT(first.*field, kernels::cuda::kMostOfExpected * expected);
  }
}

// Beside a capture of another stream, which an allocation that is not allowed would end.
TEST_P(CudaRates, AreMeasuredBesideACapture) {
  const Stream stream;
  EXPECT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  EXPECT_EQ(kernels::cuda::gpu_rates(0, stream.get()).origin.find("measured and"), std::string::npos)
      << "not in a capture";
  plan::GpuRates rates;
  EXPECT_CUDA(sm80_measure_rates(device_, rates));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  ASSERT_NE(graph, nullptr);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_GT(rates.memory_bytes, 0);
}

TEST_P(CudaRates, AreKnownAfterTheFirstCall) {
  const auto first = kernels::cuda::gpu_rates(0, nullptr), second = kernels::cuda::gpu_rates(0, nullptr);
  std::printf("%s\n", first.origin.c_str());
  EXPECT_EQ(first.origin, second.origin);
  for (const auto field : kFields) {
    EXPECT_GT(first.rates.*field, 0) << first.origin;
    EXPECT_EQ(first.rates.*field, second.rates.*field);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaRates, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRates);

}  // namespace
}  // namespace sparseloom::testing
