// Host side of launches that may begin while the previous kernel on the stream ends (programmatic dependent
// launch), and of launches in clusters. The device side is ptx/griddepcontrol.cuh. A CUDA graph keeps the
// order as a programmatic edge.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sparseloom::kernels::cuda {

/// Set `early` only if the kernel calls `wait_for_earlier_kernels()` before it reads global memory. `cluster`
/// is the number of thread blocks in a cluster; 1 means no clusters.
struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;
  int cluster = 1;
};

/// The cudaLaunchConfig_t of a shape, with the attributes it points to.
class LaunchConfig {
 public:
  explicit LaunchConfig(const LaunchShape& shape) {
    config_.gridDim = shape.grid;
    config_.blockDim = shape.block;
    config_.dynamicSmemBytes = shape.shared_bytes;
    config_.stream = shape.stream;
    config_.attrs = attributes_;
    if (shape.early) {
      cudaLaunchAttribute& early = attributes_[config_.numAttrs++];
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
      cudaLaunchAttribute& cluster = attributes_[config_.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t& get() const { return config_; }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

template <class... Parameters>
cudaError_t launch_kernel(const LaunchShape& shape, void (*kernel)(Parameters...),
                          const std::type_identity_t<Parameters>&... arguments) {
  const LaunchConfig config(shape);
  const cudaError_t status = cudaLaunchKernelEx(&config.get(), kernel, arguments...);
  if (status != cudaSuccess) cudaGetLastError();  // clear the error for the next caller
  return status;
}

/// Allows the kernel more than 48 KB of shared memory, once per device; beyond device 63 in every launch.
/// carveout: percent of the L1 memory to reserve as shared memory, if several thread blocks should fit.
template <auto kKernel>
cudaError_t allow_shared_memory(int bytes, int device, int carveout = cudaSharedmemCarveoutDefault) noexcept {
  static std::atomic<std::uint64_t> allowed{0};
  const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_acquire) & bit) != 0) return cudaSuccess;
  cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess && carveout != cudaSharedmemCarveoutDefault)
    status = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout);
  if (status == cudaSuccess) {
    allowed.fetch_or(bit, std::memory_order_release);
  } else {
    cudaGetLastError();  // clear the error for the next caller
  }
  return status;
}

/// Whether the kernel's code that the device runs waits for earlier kernels, as launch_kernel's `early`
/// requires. Code compiled from the PTX of sm_80 does not, on any device. The answer is kept per device;
/// beyond device 31 it is false.
template <auto kKernel>
bool waits_for_earlier(int device) {
  static std::atomic<std::uint64_t> known{0};  // two bits per device: whether asked, and the answer
  if (device < 0 || device >= 32) return false;
  const std::uint64_t word = known.load(std::memory_order_relaxed) >> (2 * device);
  if (word & 1) return word & 2;
  cudaFuncAttributes attributes;
  const bool does = cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess && attributes.ptxVersion >= 90;
  if (!does) cudaGetLastError();
  known.fetch_or(std::uint64_t{does ? 3u : 1u} << (2 * device), std::memory_order_relaxed);
  return does;
}

}  // namespace sparseloom::kernels::cuda
