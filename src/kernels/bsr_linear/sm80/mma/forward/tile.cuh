// Compile-time side of mma::forward: element types, the shape of a thread block's tile, and its layout in
// shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::mma::forward {

// Element types: the type of the bits, an MMA over 32 bytes of k, and the conversions to and from fp32.
struct Bf16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b[0], b[1]);
  }
  static __device__ __forceinline__ float to_f32(Bits bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

struct F16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_f16(d, a, b[0], b[1]);
  }
  static __device__ __forceinline__ float to_f32(Bits bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};

struct Tf32 {  // fp32 in memory
  using Bits = std::uint32_t;
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
    ptx::mma_m16n8k8_tf32(d, a, b[0], b[1]);
  }
  static __device__ __forceinline__ float to_f32(Bits bits) { return __uint_as_float(bits); }
};

/// Rows of kRowBytes, with the 16-byte chunk c of row r stored at chunk c ^ key(r). One chunk column of 8
/// rows (from a multiple of 8 on) then touches all 32 banks once, for cp.async and ldmatrix alike. Padding
/// would too, but would cost the third ring stage.
template <int kRowBytes>
struct Swizzle {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kRowsPerLine = kRowBytes >= 128 ? 1 : 128 / kRowBytes;  // rows in 128 bytes: all banks
  static constexpr int kKeys = kChunks < 8 ? kChunks : 8;
  static __device__ __forceinline__ int key(int row) { return row / kRowsPerLine % kKeys; }
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ key(row)) * 16);
  }
};

/// Swizzle for 32-bit loads of 4 rows (from a multiple of 4 on) x 8 columns. Chunks move in pairs, so that
/// the 32 bytes of each of the four rows lie in different banks. It is needed because ldmatrix cannot
/// transpose 32-bit elements.
template <int kRowBytes>
struct PairSwizzle {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kRowsPerLine = kRowBytes >= 128 ? 1 : 128 / kRowBytes;
  static constexpr int kKeys = kChunks / 2 < 4 ? kChunks / 2 : 4;
  static __device__ __forceinline__ int key(int row) { return row / kRowsPerLine % kKeys * 2; }
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ key(row)) * 16);
  }
};

/// A tile of kTokens x kBlockRow outputs, computed by kWarpsM x kWarpsN warps, with kChunkBytes of the
/// reduction per ring stage.
template <class Element_, int kBlockRow_, int kTokens_, int kChunkBytes_, int kWarpsM_, int kWarpsN_,
          int kStages_, int kBlocksPerSm_>
struct Tile {
  using Element = Element_;
  using Bits = typename Element::Bits;
  static constexpr int kBlockRow = kBlockRow_, kTokens = kTokens_, kChunkBytes = kChunkBytes_,
                       kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarpsN = kWarpsN_, kWarps = kWarpsM_ * kWarpsN_, kThreads = kWarps * 32;
  static constexpr int kBytes = sizeof(Bits);
  static constexpr int kPack = 16 / kBytes;            // elements of one 16-byte copy
  static constexpr int kChunk = kChunkBytes / kBytes;  // elements of the reduction per stage
  static constexpr int kSteps = kChunkBytes / 32;      // tensor instructions along one stage
  static constexpr int kWarpTokens = kTokens / kWarpsM_, kWarpLine = kBlockRow / kWarpsN_;
  static constexpr int kFragmentsM = kWarpTokens / 16, kFragmentsN = kWarpLine / 8;
  static constexpr int kABytes = kTokens * kChunkBytes, kBBytes = kBlockRow * kChunkBytes,
                       kStageBytes = kABytes + kBBytes;
  // Row pitch of a warp's sums in the epilogue, in floats. Rows are 8, 24 or 40 banks apart, so that the
  // eight-byte fragment stores do not conflict.
  static constexpr int kSumsStride = kWarpLine == 8 ? 8 : kWarpLine + 8;

  static_assert(kTokens % (kWarpsM_ * 16) == 0 && kBlockRow % (kWarpsN_ * 8) == 0,
                "warps tile the outputs in fragments of 16 x 8");
  static_assert(kFragmentsN == 1 || kFragmentsN % 2 == 0, "B fragments are loaded in pairs");
  static_assert(kThreads % (8 * (kChunkBytes / 16)) == 0,
                "a thread's rows are multiples of 8 apart, so that its swizzle key is one");
  static_assert(kTokens * (kChunkBytes / 16) % kThreads == 0, "every thread copies equally many chunks of A");
  static_assert(kWarps * 16 * kSumsStride * 4 <= kStageBytes,
                "16 tokens of every warp's sums fit into a ring stage");
  static_assert(kStages >= 3, "ends_block_row is written a barrier before it is read");
};

template <class T>
struct SharedStorage {
  alignas(
      128) std::byte ring[T::kStages][T::kStageBytes];  // A [kTokens][kChunk], then B; the epilogue's sums
  int ends_block_row[T::kStages];                       // the chunk in the stage is the last of its block row
};

}  // namespace sparseloom::kernels::cuda::mma::forward
