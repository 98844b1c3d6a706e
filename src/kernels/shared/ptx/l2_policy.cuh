// How long L2 keeps the data of a copy.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// The bits that createpolicy produces on sm_90, as constants. A constant is known before the kernel is
/// launched and so lies in a uniform register, which TMA requires; the result of the instruction would be
/// moved there for every copy.
enum class L2Policy : std::uint64_t {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12f0000000000000,
  evict_last = 0x14f0000000000000,
};

/// The same as L2Policy::evict_first, made by the instruction, for any GPU from sm_80 on.
__device__ __forceinline__ L2Policy evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return static_cast<L2Policy>(policy);
}

}  // namespace sparseloom::kernels::cuda::ptx
