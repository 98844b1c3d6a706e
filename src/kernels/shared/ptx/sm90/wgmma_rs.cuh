// wgmma as in wgmma.cuh, but with a in registers: each warp may fetch its 16 rows of a from anywhere, and b
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

namespace sparseloom::kernels::cuda::ptx {

#define SPARSELOOM_WGMMA_RS(n, type, names, a0, a1, a2, a3, b_name, b_transposed, sums)                    \
  asm volatile(                                                                                            \
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, {" a0 ", " a1 ", " a2 \
      ", " a3 "}, " b_name ", add, 1, 1, " b_transposed ";\n}"                                             \
      : sums                                                                                               \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kMnMajorB ? 1 : 0))
#define SPARSELOOM_SUMS_8(i)                                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SPARSELOOM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPARSELOOM_NAMES_16 SPARSELOOM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPARSELOOM_SUMS_16 SPARSELOOM_SUMS_8(0), SPARSELOOM_SUMS_8(8)

template <bool kMnMajorB>
__device__ __forceinline__ void wgmma_rs_bf16(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  SPARSELOOM_WGMMA_RS(16, "bf16", SPARSELOOM_NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13",
                      SPARSELOOM_SUMS_8(0));
}
template <bool kMnMajorB>
__device__ __forceinline__ void wgmma_rs_bf16(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
  SPARSELOOM_WGMMA_RS(32, "bf16", SPARSELOOM_NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21",
                      SPARSELOOM_SUMS_16);
}
template <bool kMnMajorB>
__device__ __forceinline__ void wgmma_rs_f16(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  SPARSELOOM_WGMMA_RS(16, "f16", SPARSELOOM_NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13",
                      SPARSELOOM_SUMS_8(0));
}
template <bool kMnMajorB>
__device__ __forceinline__ void wgmma_rs_f16(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
  SPARSELOOM_WGMMA_RS(32, "f16", SPARSELOOM_NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21",
                      SPARSELOOM_SUMS_16);
}

/// Call this after the wait for the wgmma that read a from these registers. Until then nothing else may be
/// put into them, which ptxas does not ensure by itself.
template <class Registers>
__device__ __forceinline__ void keep(Registers& registers) {
  if constexpr (std::is_array_v<Registers>) {
#pragma unroll
    for (auto& each : registers) keep(each);
  } else {
    asm volatile("" ::"r"(registers));
  }
}

#undef SPARSELOOM_WGMMA_RS
#undef SPARSELOOM_SUMS_16
#undef SPARSELOOM_NAMES_16
#undef SPARSELOOM_NAMES_8
#undef SPARSELOOM_SUMS_8

}  // namespace sparseloom::kernels::cuda::ptx
