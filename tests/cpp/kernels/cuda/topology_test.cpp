// The device's index tables and moved values against their twins on the host, bit for bit.
#include "kernels/shared/bsr/topology.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/device_call.h"
#include "layout/topology_tables.h"
#include "runtime/cuda.h"
#include "sparseloom/topology.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

/// Bytes on the device, guarded on both sides.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes) {
    EXPECT_CUDA(cudaMalloc(&data_, bytes + 2 * kAround));
    EXPECT_CUDA(cudaMemset(data_, kGuard, bytes + 2 * kAround));
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  ~Guarded() { cudaFree(data_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_) + kAround; }
  void write(const void* from, std::size_t bytes, const Stream& stream) const {
    EXPECT_CUDA(cudaMemcpyAsync(data(), from, bytes, cudaMemcpyHostToDevice, stream.get()));
    stream.wait();  // the host's memory may change now
  }
  void read(void* to, std::size_t bytes) const {
    std::vector<unsigned char> all(bytes_ + 2 * kAround);
    EXPECT_CUDA(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost));
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kAround, [](unsigned char b) { return b == kGuard; }))
        << "wrote before";
    EXPECT_TRUE(std::all_of(all.end() - kAround, all.end(), [](unsigned char b) { return b == kGuard; }))
        << "wrote behind";
    if (bytes != 0) std::memcpy(to, all.data() + kAround, bytes);
  }

 private:
  static constexpr std::size_t kAround = 256;
  static constexpr unsigned char kGuard = 0xa5;
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// Tables on the device beside those of the host.
class DeviceTables {
 public:
  DeviceTables(const Tables& host, const Stream& stream)
      : rows_(host.rows),
        cols_(host.cols),
        mask_(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(cols_)),
        workspace_(cuda::sm80_set_topology_workspace(rows_, cols_, runtime::cuda_device(0).shared_bytes)) {
    for (const std::vector<std::int32_t>* list : lists(host)) {
      auto& place = places_.emplace_back(std::make_unique<Guarded>(list->size() * sizeof(std::int32_t)));
      place->write(list->data(), list->size() * sizeof(std::int32_t), stream);
    }
    capacity_ = static_cast<std::int64_t>(host.col.size());
  }

  void change(const std::vector<std::uint8_t>& mask, const Stream& stream) {
    mask_.write(mask.data(), mask.size(), stream);
    const auto at = [this](std::size_t i) { return reinterpret_cast<std::int32_t*>(places_[i]->data()); };
    const TopologyTables tables{rows_, cols_, capacity_, at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
    EXPECT_CUDA(cuda::sm80_set_topology(reinterpret_cast<const std::uint8_t*>(mask_.data()), tables, nullptr,
                                        workspace_.data(), 0, stream.get()));
  }

  void expect_equal(const Tables& host, const Stream& stream) const {
    stream.wait();
    const char* const names[] = {"crow", "col", "ccol", "row", "slot", "moved", "requested"};
    for (std::size_t i = 0; i < places_.size(); ++i) {
      std::vector<std::int32_t> found(lists(host)[i]->size());
      places_[i]->read(found.data(), found.size() * sizeof(std::int32_t));
      EXPECT_TRUE(found == *lists(host)[i]) << names[i];
    }
    workspace_.read(nullptr, 0);
  }

 private:
  static std::vector<const std::vector<std::int32_t>*> lists(const Tables& t) {
    return {&t.crow, &t.col, &t.ccol, &t.row, &t.slot, &t.moved, &t.requested};
  }
  int rows_, cols_;
  std::int64_t capacity_ = 0;
  Guarded mask_, workspace_;
  std::vector<std::unique_ptr<Guarded>> places_;
};

void check_changes(int rows, int cols, double density, std::uint64_t seed) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " density " + std::to_string(density));
  core::Rng rng(seed);
  std::vector<std::uint8_t> mask = random_mask(rng, rows, cols, density);
  Tables host(rows, cols, mask);
  const Stream stream;
  DeviceTables device(host, stream);
  for (const double next :
       {density, density, density + 0.1, density - 0.1}) {  // as many blocks twice, too many, too few
    if (next == density)
      shuffle(rng, mask);
    else
      mask = random_mask(rng, rows, cols, next);
    device.change(mask, stream);
    set_topology(mask.data(), host.view());
    device.expect_equal(host, stream);
  }
}

class CudaSmallTopology : public ::testing::TestWithParam<int> {};

TEST_P(CudaSmallTopology, TablesEqualTheHosts) {
  for (const auto& [rows, cols] :
       {std::pair{1, 1}, {1, 40}, {40, 1}, {7, 5}, {32, 32}, {33, 65}, {128, 128}, {3, 1100}, {1100, 2}})
    for (const double density : {0.0, 0.05, 0.5, 1.0}) check_changes(rows, cols, density, 1);
}

TEST_P(CudaSmallTopology, AnEmptyGridIsWrittenToo) {
  for (const auto& [rows, cols] : {std::pair{0, 0}, {0, 5}, {5, 0}}) {
    const std::vector<std::uint8_t> none;
    Tables host(rows, cols, none);
    const Stream stream;
    std::fill(host.crow.begin(), host.crow.end(), 7);
    std::fill(host.ccol.begin(), host.ccol.end(), 7);
    DeviceTables device(host, stream);
    device.change(none, stream);
    set_topology(none.data(), host.view());
    device.expect_equal(host, stream);
  }
}

TEST_P(CudaSmallTopology, StaysInsideOverAnyOldTables) {
  core::Rng rng(2);
  const std::vector<std::uint8_t> mask = random_mask(rng, 9, 70, 0.3);
  Tables host(9, 70, mask);
  for (auto* list : {&host.crow, &host.col, &host.ccol, &host.row, &host.slot, &host.moved})
    for (std::int32_t& entry : *list) entry = static_cast<std::int32_t>(rng.next());
  const Stream stream;
  DeviceTables device(host, stream);
  device.change(mask, stream);
  device.change(mask, stream);  // now from valid ones: every block stays
  host = Tables(9, 70, mask);
  std::iota(host.moved.begin(), host.moved.end(), 0);
  host.requested[0] = static_cast<std::int32_t>(host.col.size());
  device.expect_equal(host, stream);
}

TEST_P(CudaSmallTopology, BlocksMoveAsOnTheHost) {
  core::Rng rng(3);
  for (const std::int64_t block_bytes : {1, 2, 12, 64, 129, 2048, 4096 + 16})
    for (const std::size_t shift : {0, 1, 2, 4, 8}) {
      SCOPED_TRACE(std::to_string(block_bytes) + " bytes at " + std::to_string(shift));
      const auto size = static_cast<std::size_t>(block_bytes);
      std::vector<std::int32_t> moved(77);
      for (std::int32_t& from : moved)
        from = static_cast<std::int32_t>(rng.below(80)) - 2;  // 77: no block either
      moved[5] = 5;
      std::vector<std::uint8_t> values(moved.size() * size), expected(values.size()), found(values.size());
      for (std::uint8_t& b : values) b = static_cast<std::uint8_t>(rng.below(255) + 1);
      for (std::size_t slot = 0; slot < moved.size(); ++slot)
        if (moved[slot] == kSlotStaysFree)
          std::memcpy(expected.data() + slot * size, values.data() + slot * size, size);
        else if (moved[slot] >= 0 && moved[slot] < 77)
          std::memcpy(expected.data() + slot * size,
                      values.data() + static_cast<std::size_t>(moved[slot]) * size, size);
      const Stream stream;
      // Guards start where the values do, so the shift is part of what is written around them.
      std::vector<std::uint8_t> placed(values.size() + 16, 0xa5), after(placed.size());
      std::copy(values.begin(), values.end(), placed.begin() + static_cast<std::ptrdiff_t>(shift));
      const Guarded device(placed.size()), source(moved.size() * 4), workspace(values.size());
      device.write(placed.data(), placed.size(), stream);
      source.write(moved.data(), moved.size() * 4, stream);
      EXPECT_CUDA(cuda::sm80_move_blocks(device.data() + shift,
                                         reinterpret_cast<const std::int32_t*>(source.data()), 77,
                                         block_bytes, workspace.data(), stream.get()));
      stream.wait();
      device.read(after.data(), after.size());
      workspace.read(nullptr, 0);
      std::copy(expected.begin(), expected.end(), placed.begin() + static_cast<std::ptrdiff_t>(shift));
      EXPECT_TRUE(after == placed);
    }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallTopology, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallTopology);

class CudaTopology : public ::testing::TestWithParam<int> {};

// Shared memory beyond 48 KB, and workspace where even that is not enough.
TEST_P(CudaTopology, LargeGridsEqualTheHosts) {
  for (const auto& [rows, cols] : {std::pair{512, 512}, {700, 900}, {9, 40000}, {40000, 9}})
    check_changes(rows, cols, 0.3, 4);
  EXPECT_GT(cuda::sm80_set_topology_workspace(700, 900, runtime::cuda_device(0).shared_bytes), 0u);
  EXPECT_EQ(cuda::sm80_set_topology_workspace(128, 128, runtime::cuda_device(0).shared_bytes), 0u);
}

INSTANTIATE_TEST_SUITE_P(, CudaTopology, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaTopology);

}  // namespace
}  // namespace sparseloom::testing
