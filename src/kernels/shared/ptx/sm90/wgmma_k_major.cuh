// wgmma as in wgmma.cuh, with two K-major operands in shared memory, of 16 to 128 columns.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/sm90/wgmma_lists.cuh"

namespace sparseloom::kernels::cuda::ptx {

#define SPARSELOOM_WGMMA_K_MAJOR(name, type, n, count, a_name, b_name)                                     \
  __device__ __forceinline__ void name(float(&d)[count], std::uint64_t a, std::uint64_t b) {               \
    asm volatile(                                                                                          \
        "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                                     \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" SPARSELOOM_LIST_NAMES_##count \
        "}, " a_name ", " b_name ", add, 1, 1, 0, 0;\n}"                                                   \
        : SPARSELOOM_LIST_SUMS_##count("+f", 0)                                                            \
        : "l"(a), "l"(b));                                                                                 \
  }
#define SPARSELOOM_WGMMA_K_MAJOR_OF(name, type)              \
  SPARSELOOM_WGMMA_K_MAJOR(name, type, 16, 8, "%8", "%9")    \
  SPARSELOOM_WGMMA_K_MAJOR(name, type, 32, 16, "%16", "%17") \
  SPARSELOOM_WGMMA_K_MAJOR(name, type, 64, 32, "%32", "%33") \
  SPARSELOOM_WGMMA_K_MAJOR(name, type, 128, 64, "%64", "%65")

/// d[64][N] += a[64][16] b[16][N].
SPARSELOOM_WGMMA_K_MAJOR_OF(wgmma_k_major_bf16, "bf16")
SPARSELOOM_WGMMA_K_MAJOR_OF(wgmma_k_major_f16, "f16")

#undef SPARSELOOM_WGMMA_K_MAJOR_OF
#undef SPARSELOOM_WGMMA_K_MAJOR

}  // namespace sparseloom::kernels::cuda::ptx
