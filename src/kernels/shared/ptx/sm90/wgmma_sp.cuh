// d[64][N] += a[64][k] b[k][N] by one warpgroup, where a is 2:4: of every four k of a row it stores two. k is
// 32 of bf16 and f16, and 64 of e4m3 and int8 (whose sums are int32), so a has 64 rows of 32 stored bytes.
// Both operands are K-major in shared memory; sums, operands and descriptors are those of wgmma.cuh. The next
// k start 32 bytes later in a and 64 in b.
//
//   metadata   Four bits for four k: where the two elements stand, the first in the low two bits.
//   16 bits    Of the rows 16 w .. of warp w, lane t has those of row t / 4 in its lower half and of row
//              t / 4 + 8 in its upper half: in lanes of t % 4 = 2 s the first 16 k, in those of 2 s + 1 the
//              second, for selector s. So one register serves two instructions.
//   8 bits     Lane t has 32 k of row t / 4 + 8 (t % 2): the first ones where t % 4 < 2, else the second.
//              kSelector is 0.
//
// The metadata must not be overwritten before the group is complete.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

// r: the constraint of a sum, "+f" or "+r".
#define SPARSELOOM_SUMS_8(r, i) \
  r(d[i]), r(d[i + 1]), r(d[i + 2]), r(d[i + 3]), r(d[i + 4]), r(d[i + 5]), r(d[i + 6]), r(d[i + 7])
#define SPARSELOOM_SUMS_16(r, i) SPARSELOOM_SUMS_8(r, i), SPARSELOOM_SUMS_8(r, i + 8)
#define SPARSELOOM_SUMS_32(r, i) SPARSELOOM_SUMS_16(r, i), SPARSELOOM_SUMS_16(r, i + 16)
#define SPARSELOOM_SUMS_64(r, i) SPARSELOOM_SUMS_32(r, i), SPARSELOOM_SUMS_32(r, i + 32)
#define SPARSELOOM_SUMS_96(r, i) SPARSELOOM_SUMS_64(r, i), SPARSELOOM_SUMS_32(r, i + 64)
#define SPARSELOOM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPARSELOOM_NAMES_16 SPARSELOOM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPARSELOOM_NAMES_32 \
  SPARSELOOM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPARSELOOM_NAMES_64                                                                                \
  SPARSELOOM_NAMES_32                                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPARSELOOM_NAMES_96                                                                                \
  SPARSELOOM_NAMES_64                                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
// types: k and the types of sums, a and b; signs: the operands after the predicate "add to d".
#define SPARSELOOM_WGMMA_SP(n, types, signs, names, a_name, b_name, meta_name, select_name, add_name, sums) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name                                             \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sp.sync.aligned.m64n" #n types " {" names "}, " a_name ", " b_name          \
               ", " meta_name ", " select_name ", add" signs ";\n}"                                         \
               : sums                                                                                       \
               : "l"(a), "l"(b), "r"(metadata), "n"(kSelector), "r"(add ? 1 : 0))
#define SPARSELOOM_WGMMA_SP_OF(name, Sum, types, r, signs)                                                   \
  template <int kSelector>                                                                                   \
  __device__ __forceinline__ void name(Sum(&d)[8], std::uint64_t a, std::uint64_t b, std::uint32_t metadata, \
                                       bool add) {                                                           \
    SPARSELOOM_WGMMA_SP(16, types, signs, SPARSELOOM_NAMES_8, "%8", "%9", "%10", "%11", "%12",               \
                        SPARSELOOM_SUMS_8(r, 0));                                                            \
  }                                                                                                          \
  template <int kSelector>                                                                                   \
  __device__ __forceinline__ void name(Sum(&d)[16], std::uint64_t a, std::uint64_t b,                        \
                                       std::uint32_t metadata, bool add) {                                   \
    SPARSELOOM_WGMMA_SP(32, types, signs, SPARSELOOM_NAMES_16, "%16", "%17", "%18", "%19", "%20",            \
                        SPARSELOOM_SUMS_16(r, 0));                                                           \
  }                                                                                                          \
  template <int kSelector>                                                                                   \
  __device__ __forceinline__ void name(Sum(&d)[32], std::uint64_t a, std::uint64_t b,                        \
                                       std::uint32_t metadata, bool add) {                                   \
    SPARSELOOM_WGMMA_SP(64, types, signs, SPARSELOOM_NAMES_32, "%32", "%33", "%34", "%35", "%36",            \
                        SPARSELOOM_SUMS_32(r, 0));                                                           \
  }                                                                                                          \
  template <int kSelector>                                                                                   \
  __device__ __forceinline__ void name(Sum(&d)[64], std::uint64_t a, std::uint64_t b,                        \
                                       std::uint32_t metadata, bool add) {                                   \
    SPARSELOOM_WGMMA_SP(128, types, signs, SPARSELOOM_NAMES_64, "%64", "%65", "%66", "%67", "%68",           \
                        SPARSELOOM_SUMS_64(r, 0));                                                           \
  }                                                                                                          \
  template <int kSelector>                                                                                   \
  __device__ __forceinline__ void name(Sum(&d)[96], std::uint64_t a, std::uint64_t b,                        \
                                       std::uint32_t metadata, bool add) {                                   \
    SPARSELOOM_WGMMA_SP(192, types, signs, SPARSELOOM_NAMES_96, "%96", "%97", "%98", "%99", "%100",          \
                        SPARSELOOM_SUMS_96(r, 0));                                                           \
  }

// 16-bit operands have signs and may be transposed, e4m3 has signs, and int8 has neither.
SPARSELOOM_WGMMA_SP_OF(wgmma_sp_bf16, float, "k32.f32.bf16.bf16", "+f", ", 1, 1, 0, 0")
SPARSELOOM_WGMMA_SP_OF(wgmma_sp_f16, float, "k32.f32.f16.f16", "+f", ", 1, 1, 0, 0")
SPARSELOOM_WGMMA_SP_OF(wgmma_sp_e4m3, float, "k64.f32.e4m3.e4m3", "+f", ", 1, 1")
SPARSELOOM_WGMMA_SP_OF(wgmma_sp_s8, std::int32_t, "k64.s32.s8.s8", "+r", "")

/// pin of wgmma.cuh for sums in int32.
template <int kCount>
__device__ __forceinline__ void pin(std::int32_t (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

#undef SPARSELOOM_WGMMA_SP_OF
#undef SPARSELOOM_WGMMA_SP
#undef SPARSELOOM_NAMES_96
#undef SPARSELOOM_NAMES_64
#undef SPARSELOOM_NAMES_32
#undef SPARSELOOM_NAMES_16
#undef SPARSELOOM_NAMES_8
#undef SPARSELOOM_SUMS_96
#undef SPARSELOOM_SUMS_64
#undef SPARSELOOM_SUMS_32
#undef SPARSELOOM_SUMS_16
#undef SPARSELOOM_SUMS_8

}  // namespace sparseloom::kernels::cuda::ptx
