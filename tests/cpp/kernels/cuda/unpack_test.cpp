// Built only with the CUDA room. Where no driver is found the same call must come back with an error code, not crash.
#include "kernels/cuda/unpack.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

/// Device copy of a vector, freed with its owner.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> result(count_);
    EXPECT_EQ(cudaMemcpy(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

constexpr std::int64_t kRows = 20, kCols = 27;  // ragged in both directions for 8 x 16 blocks
const BlockShape kBlock{8, 16};
const std::vector<std::int32_t> kCrow = {0, 1, 1, 3};  // the middle block row is empty
const std::vector<std::int32_t> kCol = {1, 0, 1};

TEST(CudaUnpack, MatchesTheHostOrReportsAnError) {
  std::vector<float> values(3 * 8 * 16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  values[5] = std::numeric_limits<float>::infinity();
  std::vector<float> dense(kRows * (kCols + 1), -1.0f);  // stride 28: the last column must stay as it is
  const IndexView index{kRows, kCols, kBlock, 3, kCrow.data(), kCol.data()};

  if (runtime::cuda_summary().devices == 0) {
    EXPECT_NE(sm80_bsr_unpack(index, values.data(), {dense.data(), DType::f32, kRows, kCols, kCols + 1}, nullptr), 0);
    return;
  }

  std::vector<float> expected = dense;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) expected[r * (kCols + 1) + c] = 0;
    for (std::int32_t i = kCrow[r / 8]; i < kCrow[r / 8 + 1]; ++i) {
      for (std::int64_t j = 0; j < 16; ++j) {
        const std::int64_t c = kCol[i] * 16 + j;
        if (c < kCols) expected[r * (kCols + 1) + c] = values[i * 128 + (r % 8) * 16 + j];
      }
    }
  }
  const OnDevice<std::int32_t> crow(kCrow), col(kCol);
  const OnDevice<float> device_values(values), device_dense(dense);
  const IndexView on_device{kRows, kCols, kBlock, 3, crow.get(), col.get()};
  ASSERT_EQ(sm80_bsr_unpack(on_device, device_values.get(), {device_dense.get(), DType::f32, kRows, kCols, kCols + 1}, nullptr), 0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(device_dense.host(), expected);
}

}  // namespace
}  // namespace sparseloom::kernels::cuda
