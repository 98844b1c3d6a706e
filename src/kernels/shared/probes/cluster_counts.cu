// Asks the driver how many clusters fit: the groups of multiprocessors that can hold a cluster differ in size
// from chip to chip.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/shared/cost/gpu_rates.h"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

/// Never launched. With all shared memory of a multiprocessor, it fits there once, like the kernels that use
/// the counts.
__global__ void fills_a_multiprocessor() {}

}  // namespace

std::array<int, 4> cluster_counts(int device) noexcept {
  static std::array<std::atomic<std::uint64_t>, 64> known{};  // four counts of 16 bits each
  const bool remembered = device >= 0 && device < 64;
  std::uint64_t word = remembered ? known[device].load(std::memory_order_acquire) : 0;
  if (word == 0) {
    const runtime::CudaDevice& properties = runtime::cuda_device(device);
    if (properties.sm == 0) return {};
    word = static_cast<std::uint64_t>(std::clamp(properties.multiprocessors, 1, 65535));
    // Only the machine code for sm_90 supports clusters; code compiled from the PTX of sm_80 does not.
    const bool clusters =
        properties.sm == 90 &&
        cudaFuncSetAttribute(fills_a_multiprocessor, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(properties.shared_bytes)) == cudaSuccess;
    for (unsigned i = 1; clusters && i < 4; ++i) {
      const LaunchConfig launch(
          {.grid = 1u << i, .block = 128, .shared_bytes = properties.shared_bytes, .cluster = 1 << i});
      int count = 0;
      if (cudaOccupancyMaxActiveClusters(&count, fills_a_multiprocessor, &launch.get()) != cudaSuccess) {
        cudaGetLastError();  // a cluster that does not fit is not an error
        count = 0;
      }
      word |= static_cast<std::uint64_t>(std::clamp(count, 0, 65535)) << (16 * i);
    }
    if (remembered) known[device].store(word, std::memory_order_release);
  }
  std::array<int, 4> counts;
  for (unsigned i = 0; i < 4; ++i) counts[i] = static_cast<int>(word >> (16 * i) & 65535);
  return counts;
}

}  // namespace sparseloom::kernels::cuda
