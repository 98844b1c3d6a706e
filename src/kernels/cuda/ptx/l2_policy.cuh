// How long L2 keeps what a copy reads or writes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// As sm_90 encodes what createpolicy makes. Known before a kernel is launched, and so in a uniform register,
/// where TMA wants it: what the instruction leaves behind would be moved there for every copy.
enum class L2Policy : std::uint64_t {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12f0000000000000,
  evict_last = 0x14f0000000000000,
};

/// L2Policy::evict_first on any GPU from sm_80 on.
__device__ __forceinline__ L2Policy evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return static_cast<L2Policy>(policy);
}

}  // namespace sparseloom::kernels::cuda::ptx
