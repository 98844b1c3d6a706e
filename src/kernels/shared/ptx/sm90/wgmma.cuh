// d[64][N] += a[64][k] b[k][N] on tensor cores by one warpgroup (all four warps execute it), with both
// operands read from shared memory and fp32 sums. The instruction is asynchronous: fence (if ordinary
// instructions wrote the sums before), wgmma, commit, wait. k is 32 bytes of an operand's row: 16 elements of
// bf16 and f16, 8 of tf32, 32 of e4m3. The last two types must be K-major. The figures below count 16-bit
// elements.
//
//   sums   warp w of the four holds the rows 16 w ..; with c = 8 j + 2 (t % 4), lane t holds
//          d[4 j + 0..3] = (t / 4, c) (t / 4, c + 1) (t / 4 + 8, c) (t / 4 + 8, c + 1)
//   a      K-major: its rows of 16 k; MN-major: its columns, of 64 elements, as rows
//   b      K-major: b's columns as rows of 16 k; MN-major: its rows, of N elements, as they are
//
// A descriptor names an operand in shared memory. The operand consists of units of 8 rows of 128 (or 64)
// bytes, in which 16-byte chunk c of row r lies at chunk c ^ r (64 bytes: c ^ r / 2 % 4), as TMA's swizzles
// write it. A unit starts at a multiple of its size, 1024 (512) bytes.
//   K-major   A row is 64 (32) k of one column of b (row of a). stride_bytes leads from 8 columns to the
//             next 8. The next 16 k start 32 bytes later.
//   MN-major  A row is 64 (32) columns of one k. stride_bytes leads from 8 k to the next 8, leading_bytes
//             from 64 (32) columns to the next 64 (32).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

enum class Swizzle : std::uint64_t { bytes128 = 1, bytes64 = 2 };

/// The bits of a shared address that a descriptor holds. In a cluster, higher address bits name the thread
/// block; a descriptor has the leading bytes there, so they must be masked (otherwise operands of several
/// units were read from wrong addresses).
__device__ __forceinline__ std::uint32_t wgmma_address(std::uint32_t shared) {
  return (shared & 0x3ffff) / 16;
}

/// The constant part of a descriptor, to which the caller adds wgmma_address.
constexpr std::uint64_t wgmma_descriptor(Swizzle swizzle, std::uint32_t stride_bytes,
                                         std::uint32_t leading_bytes) {
  return static_cast<std::uint64_t>(swizzle) << 62 | static_cast<std::uint64_t>(stride_bytes / 16) << 32 |
         static_cast<std::uint64_t>(leading_bytes / 16) << 16;
}

/// Orders earlier accesses to the sums before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the youngest kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving ordinary uses of sums across this point, since a wait does not name the
/// registers that it makes valid.
__device__ __forceinline__ void pin(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
template <int kCount>
__device__ __forceinline__ void pin(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) pin(sums[i]);
}

// Operand lists of the instruction. It names every register, so each size needs a list of its own.
#define SPARSELOOM_SUMS_8(i)                                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SPARSELOOM_SUMS_16(i) SPARSELOOM_SUMS_8(i), SPARSELOOM_SUMS_8(i + 8)
#define SPARSELOOM_SUMS_32(i) SPARSELOOM_SUMS_16(i), SPARSELOOM_SUMS_16(i + 16)
#define SPARSELOOM_SUMS_64(i) SPARSELOOM_SUMS_32(i), SPARSELOOM_SUMS_32(i + 32)
#define SPARSELOOM_SUMS_128(i) SPARSELOOM_SUMS_64(i), SPARSELOOM_SUMS_64(i + 64)
#define SPARSELOOM_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SPARSELOOM_NAMES_32 \
  SPARSELOOM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPARSELOOM_NAMES_64                                                                                \
  SPARSELOOM_NAMES_32                                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, "                                                                                   \
  "%56, "                                                                                                  \
  "%57, %58, %59, %60, %61, %62, %63"
#define SPARSELOOM_NAMES_128                                                                               \
  SPARSELOOM_NAMES_64                                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, "                                                                                        \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "  \
  "%106, %107, "                                                                                           \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
  "%125, %126, %127"
// After the operands come the predicate "add to d", the signs of a and b (both +), and whether a and b are
// transposed (MN-major).
#define SPARSELOOM_WGMMA(n, type, names, a_name, b_name, a_transposed, b_transposed, add_name, sums)   \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name                                        \
               ", 0;\n"                                                                                \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, " a_name \
               ", " b_name ", add, 1, 1, " a_transposed ", " b_transposed ";\n}"                       \
               : sums                                                                                  \
               : "l"(a), "l"(b), "n"(kMnMajorA ? 1 : 0), "n"(kMnMajorB ? 1 : 0), "r"(add ? 1 : 0))

template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[16], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA(32, "bf16", SPARSELOOM_NAMES_16, "%16", "%17", "%18", "%19", "%20", SPARSELOOM_SUMS_16(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA(64, "bf16", SPARSELOOM_NAMES_32, "%32", "%33", "%34", "%35", "%36", SPARSELOOM_SUMS_32(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA(128, "bf16", SPARSELOOM_NAMES_64, "%64", "%65", "%66", "%67", "%68",
                   SPARSELOOM_SUMS_64(0));
}
/// One m64n256 reads 80 bytes of shared memory per clock, two m64n128 read 96. At the power limit the former
/// measured faster.
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[128], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA(256, "bf16", SPARSELOOM_NAMES_128, "%128", "%129", "%130", "%131", "%132",
                   SPARSELOOM_SUMS_128(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_f16(float (&d)[16], std::uint64_t a, std::uint64_t b, bool add = true) {
  SPARSELOOM_WGMMA(32, "f16", SPARSELOOM_NAMES_16, "%16", "%17", "%18", "%19", "%20", SPARSELOOM_SUMS_16(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_f16(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add = true) {
  SPARSELOOM_WGMMA(64, "f16", SPARSELOOM_NAMES_32, "%32", "%33", "%34", "%35", "%36", SPARSELOOM_SUMS_32(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_f16(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add = true) {
  SPARSELOOM_WGMMA(128, "f16", SPARSELOOM_NAMES_64, "%64", "%65", "%66", "%67", "%68", SPARSELOOM_SUMS_64(0));
}
template <bool kMnMajorB, bool kMnMajorA = false>
__device__ __forceinline__ void wgmma_f16(float (&d)[128], std::uint64_t a, std::uint64_t b,
                                          bool add = true) {
  SPARSELOOM_WGMMA(256, "f16", SPARSELOOM_NAMES_128, "%128", "%129", "%130", "%131", "%132",
                   SPARSELOOM_SUMS_128(0));
}

// Operands of any type, K-major.
#define SPARSELOOM_WGMMA_K(n, k, type, names, a_name, b_name, add_name, sums)                              \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name                                            \
               ", 0;\n"                                                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type "." type " {" names "}, " a_name \
               ", " b_name ", add, 1, 1;\n}"                                                               \
               : sums                                                                                      \
               : "l"(a), "l"(b), "r"(add ? 1 : 0))

/// Reads the upper 19 bits of each fp32. TMA rounds the operands (TensorMapMatrix::tf32); otherwise the lower
/// bits are truncated.
__device__ __forceinline__ void wgmma_tf32(float (&d)[16], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(32, 8, "tf32", SPARSELOOM_NAMES_16, "%16", "%17", "%18", SPARSELOOM_SUMS_16(0));
}
__device__ __forceinline__ void wgmma_tf32(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(64, 8, "tf32", SPARSELOOM_NAMES_32, "%32", "%33", "%34", SPARSELOOM_SUMS_32(0));
}
__device__ __forceinline__ void wgmma_tf32(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(128, 8, "tf32", SPARSELOOM_NAMES_64, "%64", "%65", "%66", SPARSELOOM_SUMS_64(0));
}
/// Keeps some 14 bits of its sums, not 24, so the sums should be added up elsewhere at intervals.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[16], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(32, 32, "e4m3", SPARSELOOM_NAMES_16, "%16", "%17", "%18", SPARSELOOM_SUMS_16(0));
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(64, 32, "e4m3", SPARSELOOM_NAMES_32, "%32", "%33", "%34", SPARSELOOM_SUMS_32(0));
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(128, 32, "e4m3", SPARSELOOM_NAMES_64, "%64", "%65", "%66", SPARSELOOM_SUMS_64(0));
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[128], std::uint64_t a, std::uint64_t b,
                                           bool add = true) {
  SPARSELOOM_WGMMA_K(256, 32, "e4m3", SPARSELOOM_NAMES_128, "%128", "%129", "%130", SPARSELOOM_SUMS_128(0));
}

// The same with a in registers: lane t of warp w holds a[0] = (16 w + t / 4, 2 (t % 4) and the next k), a[1]
// = 8 rows further, a[2] = 8 k further, a[3] = both. The registers of a must not be written before the group
// is complete.
#define SPARSELOOM_WGMMA_RS(n, names, a_names, b_name, add_name, sums)                           \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name                                  \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, {" a_names \
               "}, " b_name ", add, 1, 1, 0;\n}"                                                 \
               : sums                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0))

__device__ __forceinline__ void wgmma_bf16_k_major(float (&d)[16], const std::uint32_t (&a)[4],
                                                   std::uint64_t b, bool add) {
  SPARSELOOM_WGMMA_RS(32, SPARSELOOM_NAMES_16, "%16, %17, %18, %19", "%20", "%21", SPARSELOOM_SUMS_16(0));
}
__device__ __forceinline__ void wgmma_bf16_k_major(float (&d)[32], const std::uint32_t (&a)[4],
                                                   std::uint64_t b, bool add) {
  SPARSELOOM_WGMMA_RS(64, SPARSELOOM_NAMES_32, "%32, %33, %34, %35", "%36", "%37", SPARSELOOM_SUMS_32(0));
}
__device__ __forceinline__ void wgmma_bf16_k_major(float (&d)[64], const std::uint32_t (&a)[4],
                                                   std::uint64_t b, bool add) {
  SPARSELOOM_WGMMA_RS(128, SPARSELOOM_NAMES_64, "%64, %65, %66, %67", "%68", "%69", SPARSELOOM_SUMS_64(0));
}

#undef SPARSELOOM_WGMMA_RS
#undef SPARSELOOM_WGMMA_K
#undef SPARSELOOM_WGMMA
#undef SPARSELOOM_NAMES_128
#undef SPARSELOOM_NAMES_64
#undef SPARSELOOM_NAMES_32
#undef SPARSELOOM_NAMES_16
#undef SPARSELOOM_SUMS_128
#undef SPARSELOOM_SUMS_64
#undef SPARSELOOM_SUMS_32
#undef SPARSELOOM_SUMS_16
#undef SPARSELOOM_SUMS_8

}  // namespace sparseloom::kernels::cuda::ptx
