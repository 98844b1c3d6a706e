// Host side: launches that may begin while the kernel before them on the stream ends, and launches in
// clusters. The kernel's side is ptx/griddepcontrol.cuh; a CUDA graph keeps the order as an edge of its own
// kind.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sparseloom::kernels::cuda {

/// early: only for kernels that wait_for_earlier_kernels. cluster: thread blocks in one; 1: none.
struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;
  int cluster = 1;
};

/// cudaLaunchConfig_t of a shape, with the attributes it points to.
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
  if (status != cudaSuccess) cudaGetLastError();  // not for the next caller
  return status;
}

/// More than 48 KB of shared memory are allowed once per device and kernel; beyond device 63 in every launch.
/// carveout: percent of what L1 shares that several thread blocks want of it.
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
    cudaGetLastError();  // not for the next caller
  }
  return status;
}

/// Registers of a thread as they are allocated, in eights; of a kernel that has code for one architecture. 0
/// where the driver does not say.
template <auto kKernel>
int registers_of() noexcept {
  static std::atomic<int> known{0};
  if (const int registers = known.load(std::memory_order_relaxed); registers > 0) return registers;
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kKernel) != cudaSuccess) {
    cudaGetLastError();  // not for the next caller
    return 0;
  }
  const int registers = (attributes.numRegs + 7) / 8 * 8;
  known.store(registers, std::memory_order_relaxed);
  return registers;
}

/// Whether the code of this kernel that the device runs waits as launch_kernel's `early` needs it: what was
/// made from the PTX of sm_80, on whatever device, does not. Asked once per device; beyond device 31 it is
/// not asked, and false.
template <auto kKernel>
bool waits_for_earlier(int device) {
  static std::atomic<std::uint64_t> known{0};  // two bits each: asked, and the answer
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
