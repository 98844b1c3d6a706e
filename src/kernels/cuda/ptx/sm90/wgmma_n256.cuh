// wgmma of 256 columns: d[64][256] += a[64][k] b[k][256], b K-major; otherwise as in wgmma.cuh. Of one m64n256 shared memory is
// read 80 bytes a clock, of two m64n128 96, which an H200 at its power limit turns into 3 % more products.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

#define SPARSELOOM_SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SPARSELOOM_SUMS_32(i) SPARSELOOM_SUMS_8(i), SPARSELOOM_SUMS_8(i + 8), SPARSELOOM_SUMS_8(i + 16), SPARSELOOM_SUMS_8(i + 24)
#define SPARSELOOM_NAMES_128                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SPARSELOOM_WGMMA(k, type, transposed, ...)                                                    \
  asm volatile(                                                                                       \
      "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n256k" #k ".f32." type "." type " {" SPARSELOOM_NAMES_128      \
      "}, %128, %129, add, 1, 1" transposed ";\n}"                                                    \
      : SPARSELOOM_SUMS_32(0), SPARSELOOM_SUMS_32(32), SPARSELOOM_SUMS_32(64), SPARSELOOM_SUMS_32(96) \
      : "l"(a), "l"(b)__VA_OPT__(, ) __VA_ARGS__)

template <bool kMnMajorA>
__device__ __forceinline__ void wgmma_n256_bf16(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  SPARSELOOM_WGMMA(16, "bf16", ", %130, 0", "n"(kMnMajorA ? 1 : 0));
}
template <bool kMnMajorA>
__device__ __forceinline__ void wgmma_n256_f16(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  SPARSELOOM_WGMMA(16, "f16", ", %130, 0", "n"(kMnMajorA ? 1 : 0));
}
/// Both K-major, k of 32. Keeps some 14 bits of its sums.
__device__ __forceinline__ void wgmma_n256_e4m3(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  SPARSELOOM_WGMMA(32, "e4m3", "");
}

#undef SPARSELOOM_WGMMA
#undef SPARSELOOM_NAMES_128
#undef SPARSELOOM_SUMS_32
#undef SPARSELOOM_SUMS_8

}  // namespace sparseloom::kernels::cuda::ptx
