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

}  // namespace
}  // namespace sparseloom::runtime
