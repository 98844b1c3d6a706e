#include "runtime/cuda.h"

#include <gtest/gtest.h>

namespace sparseloom::runtime {
namespace {

// Holds on every machine: with a GPU each device is named, without one the reason is said.
TEST(CudaSummary, NamesEveryDeviceOrSaysWhyThereIsNone) {
  const CudaSummary summary = cuda_summary();
  EXPECT_EQ(summary.names.size(), static_cast<std::size_t>(summary.devices));
  EXPECT_EQ(summary.reason.empty(), summary.devices > 0) << summary.reason;
  EXPECT_TRUE(summary.compiled || summary.devices == 0);
  for (const std::string& name : summary.names) EXPECT_NE(name.find("(sm_"), std::string::npos) << name;
}

TEST(CudaSummary, IsRepeatable) { EXPECT_EQ(cuda_summary().reason, cuda_summary().reason); }

TEST(CudaDevice, DescribesTheDevicesThatAreThere) {
  const int devices = cuda_summary().devices;
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    const CudaDevice& device = cuda_device(ordinal);
    EXPECT_GE(device.sm, 50);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GT(device.l2_bytes, 0u);
    EXPECT_GE(device.shared_bytes, std::size_t{48} << 10);
    EXPECT_GT(device.clock_hz, 1e8);
    EXPECT_GT(device.memory_bytes, 1e9);
    EXPECT_EQ(&device, &cuda_device(ordinal));
  }
  for (const int absent : {-1, devices, 63, 64, 1 << 20}) EXPECT_EQ(cuda_device(absent).sm, 0) << absent;
}

TEST(CudaDevice, AScopeForTheCpuDoesNothing) {
  const CudaDeviceScope scope(-1);
  EXPECT_EQ(cuda_error_text(1).find("1") == std::string::npos, cuda_compiled()) << cuda_error_text(1);
}

}  // namespace
}  // namespace sparseloom::runtime
