// Plans and calls for CUDA devices as far as the host decides them; what the kernels do is in
// tests/cpp/kernels/cuda.
#include <gtest/gtest.h>

#include <vector>

#include "core/expect_error.h"
#include "runtime/cuda.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

using test::expect_error;

constexpr int kAbsent = 63;  // an ordinal that no machine has

BlockIndex index_of_one_layer() { return BlockIndex(pattern::random(64, 96, {16, 32}, 0.5, 3)); }

TEST(Device, ADeviceThatIsNotThereIsNamed) {
  const BlockIndex index = index_of_one_layer();
  const Problem problem = describe(index.view(), DType::bf16, Direction::forward, 8);
  expect_error("plan", {"cuda:63", runtime::cuda_compiled() ? "compute capability 8.0" : "build without"},
               [&] { make_plan(problem, index.view(), Executor::cuda(kAbsent)); });
}

TEST(Device, BsrMatrixIsRefusedOnADevice) {
  BsrMatrix w(index_of_one_layer(), DType::f32);
  const Executor cuda = Executor::cuda(0);
  const Problem problem = describe(w, Direction::forward, 4);
  expect_error("plan", {"host memory", "cuda:0"}, [&] { make_plan(problem, w, cuda); });
  const auto plan = make_plan(problem, w, Executor::serial());
  std::vector<float> x(4 * 96), y(4 * 64);
  Workspace workspace;
  expect_error("linear", {"host memory", "cuda:0"}, [&] {
    linear(*plan, view(x.data(), 4, 96), w, nullptr, view(y.data(), 4, 64), workspace, cuda);
  });
}

TEST(Device, ACallOnAnotherDeviceThanPlannedIsRefused) {
  BsrMatrix w(index_of_one_layer(), DType::f32);
  const auto plan = make_plan(describe(w, Direction::forward, 4), w, Executor::serial());
  std::vector<float> x(4 * 96), y(4 * 64);
  Workspace workspace;
  expect_error("linear", {"an executor on the CPU, as planned", "cuda:1"}, [&] {
    linear(*plan, view(x.data(), 4, 96), w.index().view(), w.values(), nullptr, view(y.data(), 4, 64),
           workspace.at_least(plan->workspace_bytes), Executor::cuda(1));
  });
}

TEST(Device, PackAndUnpackNameTheDeviceTheyCannotUse) {
  const BlockIndex index = index_of_one_layer();
  std::vector<float> dense(64 * 96), values(static_cast<std::size_t>(index.view().blocks) * 16 * 32);
  const MatrixView matrix = view(dense.data(), 64, 96);
  expect_error("pack", {"cuda:63"},
               [&] { pack(matrix, index.view(), values.data(), Executor::cuda(kAbsent)); });
  expect_error("unpack", {"cuda:63"},
               [&] { unpack(index.view(), values.data(), matrix, Executor::cuda(kAbsent)); });
}

TEST(Device, Tf32SaysNothingOnTheCpu) {
  BsrMatrix w(index_of_one_layer(), DType::f32);
  Problem problem = describe(w, Direction::forward, 4);
  const auto plain = make_plan(problem, w, Executor::serial());
  problem.tf32 = true;
  EXPECT_EQ(make_plan(problem, w, Executor::serial()), plain);
}

// On a GPU machine: what the plan answers there, without running anything.
TEST(Device, PlansForADeviceNameItsKernelsAndRefuseTheCpus) {
  if (runtime::cuda_device(0).sm < 80) return;
  const BlockIndex index = index_of_one_layer();
  const Executor cuda = Executor::cuda(0);
  const auto kernel = [&](DType dtype, Direction direction, std::int64_t m, bool tf32) {
    Problem problem = describe(index.view(), dtype, direction, m);
    problem.tf32 = tf32;
    return make_plan(problem, index.view(), cuda)->kernel_name;
  };
  EXPECT_EQ(kernel(DType::bf16, Direction::forward, 4096, false), "sm80_mma");
  EXPECT_EQ(kernel(DType::f32, Direction::dx, 4096, true), "sm80_mma");
  EXPECT_EQ(kernel(DType::f32, Direction::dw, 4096, false), "sm80_ffma");
  EXPECT_EQ(kernel(DType::f32, Direction::forward, 4096, false), "sm80_ffma");
  expect_error("plan", {"f64"}, [&] { kernel(DType::f64, Direction::forward, 4, false); });
}

}  // namespace
}  // namespace sparseloom
