// gate_blocks and gate_gradients on the device, against their twins on the host.
#include "sparseloom/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/gates_case.h"

namespace sparseloom::testing {
namespace {

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& list) {
  std::vector<std::byte> bytes(list.size() * sizeof(T));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> list_of(const std::vector<std::byte>& bytes) {
  std::vector<T> list(bytes.size() / sizeof(T));
  if (!list.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

/// What gate_blocks writes and gate_gradients reads, on the device. Tensors of elements lie `offset` elements
/// behind an aligned address.
struct There {
  GatesCase& c;
  std::size_t offset;
  OnGpu packed, values, gates, gradient, left, scaled, place, dvalues, dgates;

  There(GatesCase& given, std::size_t off)
      : c(given),
        offset(off * size_of(c.dtype)),
        packed(bytes_of(c.packed)),
        values(shifted(c.values)),
        gates(bytes_of(c.gates)),
        gradient(shifted(c.gradient)),
        left(poison(c.packed.size() * 4)),
        scaled(poison(c.values.size() + offset)),
        place(poison(c.gates.size() * 4)),
        dvalues(poison(c.values.size() + offset)),
        dgates(poison(c.gates.size() * 4)) {}

  static std::vector<std::byte> poison(std::size_t bytes) { return {bytes, std::byte{0xff}}; }
  std::vector<std::byte> shifted(const std::vector<std::byte>& bytes) const {
    std::vector<std::byte> all = poison(offset);
    all.insert(all.end(), bytes.begin(), bytes.end());
    return all;
  }
  std::vector<std::byte> unshifted(const OnGpu& memory) const {
    const std::vector<std::byte> all = memory.read();
    return {all.begin() + static_cast<std::ptrdiff_t>(offset), all.end()};
  }

  void run(const Stream& stream) {
    const Executor executor = Executor::cuda(0, stream.get());
    IndexView index = c.index.view();
    const auto at = c.segments();
    const auto* lists = reinterpret_cast<const std::int32_t*>(packed.get());
    index.crow = lists + at.crow, index.col = lists + at.col;
    const auto* factors = reinterpret_cast<const float*>(gates.get());
    auto* places = reinterpret_cast<std::int32_t*>(place.get());
    EXPECT_EQ(gate_blocks_workspace(index, executor), 0u);
    gate_blocks(index, column_index(index), c.dtype, values.get() + offset, factors,
                {reinterpret_cast<std::int32_t*>(left.get()), scaled.get() + offset, places}, {}, executor);
    gate_gradients({c.dtype, index.block, index.blocks, values.get() + offset, factors, places,
                    gradient.get() + offset, dvalues.get() + offset, reinterpret_cast<float*>(dgates.get())},
                   executor);
    stream.wait();
  }
};

void check(GatesCase& c, std::size_t offset) {
  const IndexView index = c.index.view();
  std::vector<std::int32_t> left(c.packed.size()), place(c.gates.size());
  std::vector<std::byte> scaled(c.values.size()), dvalues(c.values.size());
  std::vector<float> dgates(c.gates.size());
  gate_blocks(index, c.index.transposed(), c.dtype, c.values.data(), c.gates.data(),
              {left.data(), scaled.data(), place.data()}, {}, Executor::serial());
  gate_gradients({c.dtype, index.block, index.blocks, c.values.data(), c.gates.data(), place.data(),
                  c.gradient.data(), dvalues.data(), dgates.data()},
                 Executor::serial());
  const Stream stream;
  There there(c, offset);
  there.run(stream);
  EXPECT_EQ(list_of<std::int32_t>(there.left.read()), left);
  EXPECT_EQ(list_of<std::int32_t>(there.place.read()), place);
  std::vector<std::byte> found = there.unshifted(there.scaled);
  const auto live = static_cast<std::size_t>(left[static_cast<std::size_t>(index.block_rows())]) *
                    static_cast<std::size_t>(c.size()) * size_of(c.dtype);
  found.resize(live), scaled.resize(live);  // the others are free slots
  EXPECT_TRUE(found == scaled);
  EXPECT_TRUE(there.unshifted(there.dvalues) == dvalues);
  const std::vector<float> sums = list_of<float>(there.dgates.read());
  for (std::size_t i = 0; i < sums.size(); ++i)
    // Terms are below 8; fp32 sums of them in groups lose at most some 2^-20 of their norm.
    ASSERT_NEAR(sums[i], dgates[i], 8 * std::sqrt(static_cast<double>(c.size())) * 1e-5) << i;
  const std::vector<std::byte> first = there.dgates.read();
  there.run(stream);
  EXPECT_TRUE(there.dgates.read() == first) << "other bits the second time";
}

class CudaSmallGates : public ::testing::TestWithParam<DType> {};
class CudaGates : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallGates, AreThoseOfTheHost) {
  for (const GatesShape& shape : std::vector<GatesShape>{{70, 90, {16, 8}, 0.4, 5},
                                                         {64, 64, {32, 32}, 1.0, 0},
                                                         {64, 128, {8, 64}, 0.7, 10},
                                                         {16, 16, {16, 16}, 0.0, 5},
                                                         {260, 200, {128, 64}, 0.6, 4}})
    for (const std::size_t offset : {0, 1}) {
      SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.cols) + " offset " +
                   std::to_string(offset));
      GatesCase c(GetParam(), shape);
      check(c, offset);
    }
}

TEST_P(CudaSmallGates, TakeNaNForOpen) {
  GatesCase c(GetParam(), {64, 64, {16, 16}, 1.0, 5});
  c.gates[3] = std::nanf(""), c.gates[4] = -0.0f;
  const Stream stream;
  There there(c, 0);
  there.run(stream);
  const std::vector<std::int32_t> place = list_of<std::int32_t>(there.place.read());
  EXPECT_GE(place[3], 0);
  EXPECT_EQ(place[4], -1);
}

TEST_P(CudaGates, AreThoseOfTheHostInManyChunks) {
  for (const GatesShape& shape : std::vector<GatesShape>{{256, 512, {8, 8}, 1.0, 3},  // one chunk exactly
                                                         {256, 520, {8, 8}, 1.0, 0},  // and some blocks more
                                                         {1030, 2000, {8, 8}, 0.4, 6},  // seven
                                                         {2048, 2048, {16, 16}, 0.5, 9}}) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
    GatesCase c(GetParam(), shape);
    check(c, 0);
  }
}

std::vector<DType> dtypes() {
  return when_devices(1).empty() ? std::vector<DType>{}
                                 : std::vector<DType>{DType::f32, DType::f16, DType::bf16};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallGates);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaGates);
INSTANTIATE_TEST_SUITE_P(, CudaSmallGates, ::testing::ValuesIn(dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
INSTANTIATE_TEST_SUITE_P(, CudaGates, ::testing::ValuesIn(dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace sparseloom::testing
