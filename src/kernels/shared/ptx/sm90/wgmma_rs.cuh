// wgmma as in wgmma.cuh, but with a in registers: each warp may load its 16 rows of a from any address, and b
// comes from shared memory.
//
//   a      Warp w holds the rows 16 w ..; lane t holds a[0] = (t / 4, 2 (t % 4) and the next k), a[1] =
//          8 rows further, a[2] = 8 k further, a[3] = both, which is what ldmatrix_x4 loads.
//
// The registers of a must not be written before the group is complete.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_lists.cuh"

namespace sparseloom::kernels::cuda::ptx {

#define SPARSELOOM_WGMMA_RS(n, type, names, a0, a1, a2, a3, b_name, b_transposed, sums)                    \
  asm volatile(                                                                                            \
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, {" a0 ", " a1 ", " a2 \
      ", " a3 "}, " b_name ", add, 1, 1, " b_transposed ";\n}"                                             \
      : sums                                                                                               \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kMnMajorB ? 1 : 0))
#define SPARSELOOM_WGMMA_RS_SIZE(name, type, n, count, a0, a1, a2, a3, b_name, transposed)              \
  template <bool kMnMajorB>                                                                             \
  __device__ __forceinline__ void name(float(&d)[count], const std::uint32_t(&a)[4], std::uint64_t b) { \
    SPARSELOOM_WGMMA_RS(n, type, SPARSELOOM_LIST_NAMES_##count, a0, a1, a2, a3, b_name, transposed,     \
                        SPARSELOOM_LIST_SUMS_##count("+f", 0));                                         \
  }
#define SPARSELOOM_WGMMA_RS_OF(name, type)                                               \
  SPARSELOOM_WGMMA_RS_SIZE(name, type, 16, 8, "%8", "%9", "%10", "%11", "%12", "%13")    \
  SPARSELOOM_WGMMA_RS_SIZE(name, type, 32, 16, "%16", "%17", "%18", "%19", "%20", "%21") \
  SPARSELOOM_WGMMA_RS_SIZE(name, type, 64, 32, "%32", "%33", "%34", "%35", "%36", "%37") \
  SPARSELOOM_WGMMA_RS_SIZE(name, type, 128, 64, "%64", "%65", "%66", "%67", "%68", "%69")

SPARSELOOM_WGMMA_RS_OF(wgmma_rs_bf16, "bf16")
SPARSELOOM_WGMMA_RS_OF(wgmma_rs_f16, "f16")

/// Call this after the wait for the wgmma that read a from these registers. Until then nothing else may be
/// written to them, which ptxas does not ensure by itself.
template <class Registers>
__device__ __forceinline__ void keep(Registers& registers) {
  if constexpr (std::is_array_v<Registers>) {
#pragma unroll
    for (auto& each : registers) keep(each);
  } else {
    asm volatile("" ::"r"(registers));
  }
}

#undef SPARSELOOM_WGMMA_RS_OF
#undef SPARSELOOM_WGMMA_RS_SIZE
#undef SPARSELOOM_WGMMA_RS

}  // namespace sparseloom::kernels::cuda::ptx
