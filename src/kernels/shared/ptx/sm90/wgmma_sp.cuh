// d[64][N] += a[64][k] b[k][N] by one warpgroup, where a is 2:4: of every four k of a row it stores two. k is
// 32 of bf16 and f16, and 64 of e4m3 and int8 (whose sums are int32), so a has 64 rows of 32 stored bytes.
// Both operands are K-major in shared memory; sums, operands and descriptors are those of wgmma.cuh. The next
// k start 32 bytes later in a and 64 in b.
//
//   metadata   Four bits per four k: the positions of the two elements, the first in the low two bits.
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

#include "kernels/shared/ptx/sm90/wgmma_lists.cuh"

namespace sparseloom::kernels::cuda::ptx {

// types: k and the types of sums, a and b; signs: the operands after the predicate "add to d".
#define SPARSELOOM_WGMMA_SP(n, types, signs, names, a_name, b_name, meta_name, select_name, add_name, sums) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name                                             \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sp.sync.aligned.m64n" #n types " {" names "}, " a_name ", " b_name          \
               ", " meta_name ", " select_name ", add" signs ";\n}"                                         \
               : sums                                                                                       \
               : "l"(a), "l"(b), "r"(metadata), "n"(kSelector), "r"(add ? 1 : 0))
#define SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, n, count, a_name, b_name, meta_name, select,  \
                                 add_)                                                                     \
  template <int kSelector>                                                                                 \
  __device__ __forceinline__ void name(Sum(&d)[count], std::uint64_t a, std::uint64_t b,                   \
                                       std::uint32_t metadata, bool add) {                                 \
    SPARSELOOM_WGMMA_SP(n, types, signs, SPARSELOOM_LIST_NAMES_##count, a_name, b_name, meta_name, select, \
                        add_, SPARSELOOM_LIST_SUMS_##count(r, 0));                                         \
  }
#define SPARSELOOM_WGMMA_SP_OF(name, Sum, types, r, signs)                                         \
  SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, 16, 8, "%8", "%9", "%10", "%11", "%12")     \
  SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, 32, 16, "%16", "%17", "%18", "%19", "%20")  \
  SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, 64, 32, "%32", "%33", "%34", "%35", "%36")  \
  SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, 128, 64, "%64", "%65", "%66", "%67", "%68") \
  SPARSELOOM_WGMMA_SP_SIZE(name, Sum, types, r, signs, 192, 96, "%96", "%97", "%98", "%99", "%100")

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
#undef SPARSELOOM_WGMMA_SP_SIZE
#undef SPARSELOOM_WGMMA_SP

}  // namespace sparseloom::kernels::cuda::ptx
