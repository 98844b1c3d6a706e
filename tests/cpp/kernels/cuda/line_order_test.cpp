// Block rows multiplied in another order, and so beside other neighbours: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {
namespace {

class CudaBlockRowOrder : public OnDevice {
 public:
  static Matrix ordered(Instance& instance, const kernels::Kernel& kernel,
                        const std::vector<std::uint16_t>& order) {
    const Stream stream;
    DeviceCall call(instance, kernel, Memory::exact);
    call.order_block_rows(order);
    call.upload(stream);
    EXPECT_CUDA(call.launch(stream.get())) << kernel.name << ": " << describe(instance.c);
    return call.download(stream);
  }

  static void expect_same_bits(const Case& c) {
    Instance instance(c);
    const Problem problem = instance.cuda_problem(0);
    const plan::Machine machine{runtime::Isa::generic, {}, runtime::cuda_device(0)};
    for (const kernels::Kernel* kernel : runnable_on_device(problem)) {
      const BlockRowGroups groups = kernels::bsr_linear::ask(*kernel, problem, machine).schedule.groups;
      if (groups.block_rows == 0) continue;
      const Matrix as_they_lie = run_on_device(instance, *kernel, Memory::exact);
      expect_accurate(instance, as_they_lie, instance.answer());
      const IndexView index = instance.index();
      const std::int64_t block_rows =
          c.direction == Direction::forward ? index.block_rows() : index.block_cols();
      std::vector<std::uint16_t> order(
          static_cast<std::size_t>((block_rows + groups.fold - 1) / groups.fold));
      std::iota(order.begin(), order.end(), std::uint16_t{0});
      std::mt19937 random(7);
      for (int turn = 0; turn < 3; ++turn) {
        turn == 0 ? std::reverse(order.begin(), order.end())
                  : std::shuffle(order.begin(), order.end(), random);
        EXPECT_EQ(ordered(instance, *kernel, order).bytes, as_they_lie.bytes)
            << kernel->name << ": " << describe(c);
      }
    }
  }
};

// Few tokens make tiles narrow, many wide; the last block row reaches beyond the edge and stands anywhere in
// an order.
TEST_P(CudaBlockRowOrder, GivesTheSameBits) {
  for (const std::int32_t bm : {8, 16, 32, 64, 128})
    for (const std::int32_t bn : {16, 32, 64, 128}) {
      Case c = base();
      c.block = {bm, bn}, c.density = 0.4;
      c.m = 70, c.rows = 7 * bm - 8, c.cols = 7 * bn - 24;
      if (c.direction == Direction::forward) c.bias = true, c.activation = Activation::relu;
      expect_same_bits(c);
    }
}

TEST_P(CudaBlockRowOrder, GivesTheSameBitsInWideTiles) {
  for (const std::int32_t side : {32, 64, 128})
    for (const double density : {0.05, 0.3}) {  // of blocks of 32: K tiles of their own, and halves
      Case c = base();
      c.block = {side, side}, c.density = density;
      c.m = 1536, c.rows = c.cols = 1024;
      if (side != 64 && c.dtype == DType::f32) c.m = 300;
      expect_same_bits(c);
    }
}

// Thread blocks that meet another group of block rows in each of several rounds.
TEST_P(CudaBlockRowOrder, UnevenGroupsGiveTheSameBits) {
  for (const double density : {0.1, 0.9}) {
    Case c = base();
    c.block = {16, 16}, c.m = 9000, c.rows = c.direction == Direction::dx ? 200 : 1100,
    c.cols = 1300 - c.rows;
    c.density = density, c.skewed = density == 0.9;
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Matrix even = run_on_device(instance, *kernel, Memory::exact);
      expect_accurate(instance, even, instance.answer());
      const Stream stream;
      DeviceCall call(instance, *kernel, Memory::exact);
      call.block_rows_are_uneven();
      call.upload(stream);
      EXPECT_CUDA(call.launch(stream.get())) << kernel->name << ": " << describe(c);
      EXPECT_EQ(call.download(stream).bytes, even.bytes) << kernel->name << ": " << describe(c);
    }
  }
}

std::vector<Product> with_block_rows() {
  std::vector<Product> list = products();
  std::erase_if(list, [](const Product& p) { return p.direction == Direction::dw; });
  return list;
}

/// For the sanitizers.
class CudaSmallBlockRowOrder : public CudaBlockRowOrder {};

TEST_P(CudaSmallBlockRowOrder, GivesTheSameBits) {
  for (const std::int32_t side : {16, 32, 64, 128}) {
    Case c = base();
    c.block = {side, side}, c.density = 0.5;
    c.m = 70, c.rows = 3 * side - 8, c.cols = 3 * side;
    expect_same_bits(c);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallBlockRowOrder, ::testing::ValuesIn(with_block_rows()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallBlockRowOrder);
INSTANTIATE_TEST_SUITE_P(, CudaBlockRowOrder, ::testing::ValuesIn(with_block_rows()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBlockRowOrder);

}  // namespace
}  // namespace sparseloom::testing
