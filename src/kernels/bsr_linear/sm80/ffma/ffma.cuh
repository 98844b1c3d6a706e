// Shared by the fp32 kernels without tensor cores: the lane layout of a warp tile, and copies of four floats.
#pragma once

#include <cstdint>

#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::ffma {

constexpr int kChunk = 4;  // floats of one 16-byte copy, shared load or store

/// Lanes over a warp tile, kNarrow x kWide of them. The narrow side takes lane bit 0 and, if it has four
/// lanes, bit 4. So every quarter of a warp, the unit in which 16-byte shared loads are served, needs few
/// different addresses of both operands, and both quarters of a half-warp need the same ones of the narrow
/// operand.
template <int kNarrow>
struct Lanes {
  static_assert(kNarrow == 2 || kNarrow == 4, "a warp is 2 x 16 or 4 x 8 lanes");
  static constexpr int kWide = 32 / kNarrow;
  static __device__ __forceinline__ int narrow(int lane) {
    return (lane & 1) | (kNarrow == 4 ? lane >> 4 << 1 : 0);
  }
  static __device__ __forceinline__ int wide(int lane) { return lane >> 1 & (kWide - 1); }
};

/// The number of floats, of four from `column` on, that lie before `end`.
__device__ __forceinline__ int chunk_floats(std::int64_t column, std::int64_t end) {
  return static_cast<int>(max(std::int64_t{0}, min(std::int64_t{kChunk}, end - column)));
}

/// Queues the copy of `floats` (0 to 4) floats, and zeros for the rest of the four. `source` is not read past
/// them. `aligned`: it is 16-byte aligned wherever floats > 0; this is the same for every chunk of an
/// operand. `anywhere`: a valid address to pass if nothing is read.
__device__ __forceinline__ void copy_chunk(std::uint32_t shared, const float* source, int floats,
                                           bool aligned, const float* anywhere) {
  if (aligned) {
    ptx::cp_async_cg(shared, floats > 0 ? source : anywhere, floats * sizeof(float));
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    ptx::cp_async_ca_b32(shared + i * sizeof(float), i < floats ? source + i : anywhere,
                         i < floats ? sizeof(float) : 0);
}

/// Queues a thread's copies of a tile: kPasses chunks, `source_pass` floats apart in memory, kPassBytes apart
/// in shared memory and kPassRows rows apart in the tile, of which `rows` (counted from the first chunk's)
/// exist. Inside the matrix this takes kPasses instructions and their addresses. Computing the length and the
/// alignment of each copy would take four times as many, a notable fraction of all instructions (measured).
template <int kPasses, int kPassRows, int kPassBytes>
__device__ __forceinline__ void copy_column(std::uint32_t shared, const float* source,
                                            std::int64_t source_pass, int floats, int rows, bool aligned,
                                            const float* anywhere) {
  if (aligned && floats == kChunk && rows > (kPasses - 1) * kPassRows) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass, source += source_pass)
      ptx::cp_async_cg(shared + pass * kPassBytes, source, 16);
    return;
  }
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass, source += source_pass)
    copy_chunk(shared + pass * kPassBytes, source, pass * kPassRows < rows ? floats : 0, aligned, anywhere);
}

__device__ __forceinline__ float4 load_chunk(const float* shared) {
  return *reinterpret_cast<const float4*>(shared);
}

/// Adds four floats of global memory to v.
__device__ __forceinline__ void add_chunk(float4& v, const float* from, bool aligned) {
  const float4 more =
      aligned ? *reinterpret_cast<const float4*>(from) : make_float4(from[0], from[1], from[2], from[3]);
  v.x += more.x;
  v.y += more.y;
  v.z += more.z;
  v.w += more.w;
}

/// Stores the first `floats` of four floats to global memory, one by one if the matrix is misaligned or ends
/// there.
__device__ __forceinline__ void store_chunk(float* out, float4 v, int floats, bool aligned) {
  if (aligned && floats == kChunk) {
    *reinterpret_cast<float4*>(out) = v;
    return;
  }
  if (floats > 0) out[0] = v.x;
  if (floats > 1) out[1] = v.y;
  if (floats > 2) out[2] = v.z;
  if (floats > 3) out[3] = v.w;
}

}  // namespace sparseloom::kernels::cuda::ffma
