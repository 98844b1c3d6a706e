// The device's topologies of any number of blocks up to a capacity against their twins on the host, bit for
// bit.
#include "layout/moving_topology.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/device_call.h"
#include "kernels/shared/bsr/topology.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

/// A vector on the device.
template <class T>
class There {
 public:
  explicit There(const std::vector<T>& from) : size_(from.size()) {
    EXPECT_CUDA(cudaMalloc(&data_, (size_ + 1) * sizeof(T)));
    EXPECT_CUDA(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    // The copy returns once the host's memory lies in a buffer, and Stream does not wait for the default one.
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  ~There() { cudaFree(data_); }
  There(const There&) = delete;
  There& operator=(const There&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> found(size_);
    EXPECT_CUDA(cudaMemcpy(found.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return found;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

void check_updates(int rows, int cols, double room) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  core::Rng rng(1);
  std::vector<std::uint8_t> mask = random_mask(rng, rows, cols, room / 2);
  const auto capacity = static_cast<std::size_t>(room * static_cast<double>(mask.size())) + 1;
  Tables host = tables_with_room(rows, cols, mask, std::min(capacity, mask.size()));
  There<std::int32_t> crow(host.crow), col(host.col), ccol(host.ccol), row(host.row), slot(host.slot),
      moved(host.moved), requested(host.requested), flags({0});
  const TopologyTables there{rows,
                             cols,
                             static_cast<std::int64_t>(host.col.size()),
                             crow.data(),
                             col.data(),
                             ccol.data(),
                             row.data(),
                             slot.data(),
                             moved.data(),
                             requested.data()};
  There<std::byte> workspace(std::vector<std::byte>(
      cuda::sm80_set_topology_workspace(rows, cols, runtime::cuda_device(0).shared_bytes)));
  const Stream stream;
  std::int32_t expected = 0;
  for (const double density : {room / 2, room / 5, 0.0, room * 0.8, 1.0, room / 3}) {
    mask = random_mask(rng, rows, cols, density);
    const There<std::uint8_t> bytes(mask);
    EXPECT_CUDA(
        cuda::sm80_set_topology(bytes.data(), there, flags.data(), workspace.data(), 0, stream.get()));
    stream.wait();
    update_topology(mask.data(), host.view(), &expected);
    EXPECT_EQ(crow.read(), host.crow);
    EXPECT_EQ(col.read(), host.col);
    EXPECT_EQ(ccol.read(), host.ccol);
    EXPECT_EQ(row.read(), host.row);
    EXPECT_EQ(slot.read(), host.slot);
    EXPECT_EQ(moved.read(), host.moved);
    EXPECT_EQ(requested.read(), host.requested);
    EXPECT_EQ(flags.read()[0], expected);
  }
}

class CudaSmallMovingTopology : public ::testing::TestWithParam<int> {};

TEST_P(CudaSmallMovingTopology, TablesEqualTheHosts) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {1, 40}, {40, 1}, {7, 5}, {33, 65}, {64, 64}, {3, 1100}})
    for (const double room : {0.1, 0.6, 1.0}) check_updates(rows, cols, room);
}

TEST_P(CudaSmallMovingTopology, ChoicesEqualTheHosts) {
  core::Rng rng(2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [rows, cols] : {std::pair{1, 1}, {1, 40}, {40, 1}, {7, 5}, {33, 65}, {64, 64}, {3, 1100}})
    for (const double part : {0.0, 0.2, 0.7})
      for (const int bad : {0, 0, 1, 2}) {
        const std::vector<std::uint8_t> stored = random_mask(rng, rows, cols, 0.4);
        const Tables tables = tables_with_room(rows, cols, stored, stored.size());
        Choice choice = random_choice(rng, tables, static_cast<double>(rng.below(stored.size() + 1)), part);
        if (bad == 1) choice.scores[0] = nan;  // of a free slot in some grids
        if (bad == 2) choice.growth.back() = nan;
        std::vector<std::uint8_t> expected(stored.size());
        std::int32_t flags = 0;
        choose_blocks(choice.view(tables, tables.crow.data(), tables.col.data()), expected.data(), &flags);
        const There<std::int32_t> crow(tables.crow), col(tables.col), bits({0});
        const There<float> scores(choice.scores), growth(choice.growth);
        const There<double> budget({choice.budget[0], choice.budget[1]});
        const There<std::uint8_t> mask(stored);
        BlockChoice there = choice.view(tables, crow.data(), col.data());
        there.scores = scores.data(), there.growth = growth.data(), there.budget = budget.data();
        const Stream stream;
        EXPECT_CUDA(cuda::sm80_choose_blocks(there, mask.data(), bits.data(), stream.get()));
        stream.wait();
        EXPECT_EQ(mask.read(), expected) << rows << " x " << cols;
        EXPECT_EQ(bits.read()[0], flags);
        if (bad != 0) continue;
        there.growth = nullptr;
        choice.growth.assign(choice.growth.size(), -std::numeric_limits<float>::infinity());
        choice.budget[1] = 0;  // nothing is dropped where nothing grows
        EXPECT_CUDA(cuda::sm80_choose_blocks(there, mask.data(), bits.data(), stream.get()));
        stream.wait();
        EXPECT_EQ(mask.read(), chosen_by_sorting(tables, choice)) << rows << " x " << cols;
      }
}

TEST_P(CudaSmallMovingTopology, FreeBlocksAreCleared) {
  for (const std::int64_t block_bytes : {16, 64, 129, 4096})
    for (const std::int32_t end : {0, 3, 40, 41, -5})
      for (const std::size_t shift : {0, 1, 4}) {
        const auto size = static_cast<std::size_t>(block_bytes);
        std::vector<std::uint8_t> blocks(40 * size + 16, 7);
        const There<std::uint8_t> there(blocks);
        const There<std::int32_t> crow_end({end});
        const Stream stream;
        EXPECT_CUDA(cuda::sm80_clear_free_blocks(there.data() + shift, block_bytes, crow_end.data(), 40,
                                                 stream.get()));
        stream.wait();
        const auto live = static_cast<std::size_t>(std::clamp(end, 0, 40));
        for (std::size_t i = live * size; i < 40 * size; ++i) blocks[shift + i] = 0;
        EXPECT_EQ(there.read(), blocks);
      }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallMovingTopology, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallMovingTopology);

class CudaMovingTopology : public ::testing::TestWithParam<int> {};

TEST_P(CudaMovingTopology, LargeGridsEqualTheHosts) {
  for (const auto& [rows, cols] : {std::pair{512, 512}, {9, 40000}}) check_updates(rows, cols, 0.3);
}

INSTANTIATE_TEST_SUITE_P(, CudaMovingTopology, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaMovingTopology);

}  // namespace
}  // namespace sparseloom::testing
