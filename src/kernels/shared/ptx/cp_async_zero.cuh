// A cp.async that may write zeros instead.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// As cp_async_cg for all 16 bytes; with `zero` it writes zeros and reads nothing. This takes the predicate
/// as it is, where a count of source bytes that is 0 or 16 costs five instructions.
__device__ __forceinline__ void cp_async_cg_or_zero(std::uint32_t shared, const void* global, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p;\n}" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(zero))
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
