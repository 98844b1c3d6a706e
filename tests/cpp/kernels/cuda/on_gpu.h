// Bytes on the device for tests of CUDA rows that call the kernels' entries themselves.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {

/// Device copy of some bytes between guards.
class OnGpu {
 public:
  explicit OnGpu(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    std::vector<std::byte> all(size_ + 2 * kAround, std::byte{0xa5});
    if (size_ != 0) std::memcpy(all.data() + kAround, bytes.data(), size_);
    EXPECT_CUDA(cudaMalloc(&data_, all.size()));
    EXPECT_CUDA(cudaMemcpy(data_, all.data(), all.size(), cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  std::byte* get() const { return static_cast<std::byte*>(data_) + kAround; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> all(size_ + 2 * kAround);
    EXPECT_CUDA(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < kAround; ++i)
      if (all[i] != std::byte{0xa5} || all[kAround + size_ + i] != std::byte{0xa5}) {
        ADD_FAILURE() << "wrote outside";
        break;
      }
    return {all.begin() + kAround, all.end() - kAround};
  }

 private:
  static constexpr std::size_t kAround = 1024;
  void* data_ = nullptr;
  std::size_t size_;
};

inline std::vector<std::byte> as_bytes(const std::vector<std::uint8_t>& list) {
  std::vector<std::byte> bytes(list.size());
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), list.size());
  return bytes;
}

}  // namespace sparseloom::testing
