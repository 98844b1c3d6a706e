// dW that is added to an fp32 gradient, on a GPU: every kernel by name, twice in a row, at any address. Its
// accuracy on every shape, its bits in every run and NaN: products_test.cpp, contract_test.cpp and
// not_a_number_test.cpp, whose suites run it too.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

class CudaAccumulate : public OnDevice {
 protected:
  // Whatever TMA can address too when `aligned`: the gradient itself need not be.
  Case added(std::int64_t m, BlockShape block, bool aligned, std::int64_t shift) const {
    Case c = base();
    c.m = m, c.block = block, c.values_shift = shift, c.density = 0.6;
    c.rows = 3 * block.rows - (aligned ? 8 : 3), c.cols = 4 * block.cols - (aligned ? 8 : 5);
    return c;
  }
};

constexpr BlockShape kBlocks[] = {{8, 8},   {8, 64},   {16, 16}, {16, 32},  {32, 16},
                                  {32, 32}, {32, 128}, {64, 64}, {128, 16}, {128, 128}};

// 5000 tokens of so few blocks are cut into pieces, which others add up: sum_pieces, parts in the workspace.
TEST_P(CudaAccumulate, TwoCallsAddBothAtAnyAddress) {
  for (const BlockShape block : kBlocks)
    for (const bool aligned : {true, false})
      for (const std::int64_t m : {1, 70, 5000})
        for (const std::int64_t shift : {0, 1, 2, 3}) {
          if (m == 5000 && shift > 1) continue;
          Case c = added(m, block, aligned, shift);
          c.integers = true;
          Instance instance(c);
          const Matrix start = instance.before;
          for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
            SCOPED_TRACE(kernel->name);
            instance.before = start;
            const Stream stream;
            DeviceCall call(instance, *kernel);
            call.upload(stream);
            EXPECT_CUDA(call.launch(stream.get()));
            const Matrix once = call.download(stream);
            expect_exact(instance, once, instance.answer());
            EXPECT_CUDA(call.launch(stream.get()));  // on what the first left in gradient and workspace
            const Matrix twice = call.download(stream);
            instance.before = once;
            expect_exact(instance, twice, instance.answer());
          }
        }
}

TEST_P(CudaAccumulate, NoTokensChangeNothing) {
  for (const BlockShape block : kBlocks) {
    Instance instance(added(0, block, true, 0));
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0)))
      EXPECT_EQ(run_on_device(instance, *kernel).bytes, instance.before.bytes) << kernel->name;
  }
}

// TMA's kernels take an aligned product however the gradient lies; without accumulate they refuse an odd
// address.
TEST_P(CudaAccumulate, EveryDwKernelIsExercised) {
  std::set<std::string> seen, expected;
  for (const BlockShape block : kBlocks) {
    const Instance instance(added(64, block, true, 1));
    Problem problem = instance.cuda_problem(0);
    for (const kernels::Kernel* kernel : runnable_on_device(problem)) seen.insert(kernel->name);
    problem.accumulate = false;
    for (const kernels::Kernel* kernel : runnable_on_device(problem)) expected.insert(kernel->name);
  }
  EXPECT_EQ(seen, expected);
}

std::vector<Product> sums() {
  std::vector<Product> list = products_and_sums();
  std::erase_if(list, [](const Product& p) { return !p.accumulate; });
  return list;
}
INSTANTIATE_TEST_SUITE_P(, CudaAccumulate, ::testing::ValuesIn(sums()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaAccumulate);

}  // namespace
}  // namespace sparseloom::testing
