// Sparsifiers on a GPU take what the CPU takes, in every dtype, at odd sizes and addresses, and with ties.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/on_gpu.h"
#include "runtime/cuda.h"
#include "sparseloom/sparsifier_ops.h"
#include "sparsifiers/device_cases.h"

namespace sparseloom::testing {
namespace {

SparsifyOutput run(const SparsifyCase& c, const std::vector<std::byte>& memory, const SparsifierSpec& spec,
                   bool with_mask, bool with_values) {
  const Stream stream;
  const Executor executor = Executor::cuda(0, stream.get());
  SparsifyOutput output(c);
  const OnGpu dense(memory), mask(output.mask), values(output.values);
  const ConstMatrixView view = view_of(c, dense.get());
  const std::size_t bytes = sparsify_workspace(view, spec, executor);
  const OnGpu workspace(std::vector<std::byte>(bytes, std::byte{0xa5}));
  sparsify(view, spec, result_of(c, with_mask ? mask.get() : nullptr, with_values ? values.get() : nullptr),
           {workspace.get(), bytes}, executor);
  stream.wait();
  workspace.read();
  output.mask = mask.read(), output.values = values.read();
  return output;
}

class CudaSmallSparsify : public ::testing::TestWithParam<DType> {};
class CudaSparsify : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallSparsify, TakesWhatTheCpuTakes) {
  for (const Values values : {Values::ties, Values::narrow, Values::specials}) {
    expect_as_on_the_cpu({GetParam(), 37, 448, 0, 0, values}, sparsify_specs(), run);
    expect_as_on_the_cpu({GetParam(), 21, 301, 5, 1, values}, sparsify_specs(), run);
  }
  expect_as_on_the_cpu({GetParam(), 1, 1}, sparsify_specs(), run);
}

TEST_P(CudaSparsify, TakesWhatTheCpuTakes) {
  for (const Values values : kValues) {
    expect_as_on_the_cpu({GetParam(), 1000, 2048, 0, 0, values}, sparsify_specs(), run);
    expect_as_on_the_cpu({GetParam(), 700, 1003, 5, 3, values}, sparsify_specs(), run);
    expect_as_on_the_cpu({GetParam(), 520, 1032, 8, 8, values}, sparsify_specs(), run);
    expect_as_on_the_cpu({GetParam(), 3, 100003, 1, 0, values}, sparsify_specs(), run);
  }
}

std::vector<DType> dtypes() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32, DType::f16, DType::bf16, DType::f64};
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSparsify, ::testing::ValuesIn(dtypes()));
INSTANTIATE_TEST_SUITE_P(, CudaSparsify, ::testing::ValuesIn(dtypes()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSparsify);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSparsify);

}  // namespace
}  // namespace sparseloom::testing
