// The arithmetic of the FFMA decode kernel: one chunk out of shared memory into a warp's accumulators. acc[token tile][output tile]
// [0..3] of lane 4 g + q = (token g, outputs 2 q, 2 q + 1), (token g + 8, the same). Included by decode_ffma.cuh.
#pragma once

#include "kernels/cuda/sm80/decode_ffma_config.cuh"

namespace sparseloom::kernels::cuda::decode::ffma {

/// fp32 without rounding of operands. Each lane sums its accumulators alone. Lane q takes the four pieces of a chunk in the order
/// q, q ^ 1, q ^ 2, q ^ 3: with one order for all, the rows 2 q of W, 128 bytes apart, would lie in the same banks.
struct Math {
  /// W at k = 4 piece .. + 3 of the lane's outputs 2 q and 2 q + 1 of a tile.
  struct Operands {
    float even[4], odd[4];
  };

  template <class C>
  static __device__ __forceinline__ Operands load_b(Forward, const Stage<C>& stage, int lane, int tile, int piece) {
    const auto* rows = reinterpret_cast<const float4*>(stage.w) + 4 * (8 * tile + 2 * (lane % 4)) + piece;
    const float4 even = rows[0], odd = rows[4];
    return {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
  }

  template <class C>
  static __device__ __forceinline__ Operands load_b(Dx, const Stage<C>& stage, int lane, int tile, int piece) {
    Operands b;
    const auto* pairs = reinterpret_cast<const float2*>(stage.w) + lane % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 both = pairs[4 * dx_group<C::kStrip>(4 * j + piece, tile)];
      b.even[j] = both.x;
      b.odd[j] = both.y;
    }
    return b;
  }

  template <class C>
  static __device__ __forceinline__ void multiply(float (&acc)[C::kTokenTiles][C::kOutputTiles][4], const Stage<C>& stage, int lane,
                                                  int m) {
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
      const int piece = step ^ (lane % 4);
      const auto* x_rows = reinterpret_cast<const float4*>(stage.x) + 4 * (lane / 4) + piece;
      float4 x[2 * C::kTokenTiles];
#pragma unroll
      for (int t = 0; t < 2 * C::kTokenTiles; ++t) x[t] = 8 * t < m ? x_rows[32 * t] : float4{};
#pragma unroll
      for (int n = 0; n < C::kOutputTiles; ++n) {
        const Operands b = load_b(typename C::Walk{}, stage, lane, n, piece);
#pragma unroll
        for (int t = 0; t < 2 * C::kTokenTiles; ++t) {
          if (8 * t >= m) break;
          const float k[4] = {x[t].x, x[t].y, x[t].z, x[t].w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float* sums = &acc[t / 2][n][2 * (t % 2)];
            sums[0] = fmaf(k[j], b.even[j], sums[0]);
            sums[1] = fmaf(k[j], b.odd[j], sums[1]);
          }
        }
      }
    }
  }
};

}  // namespace sparseloom::kernels::cuda::decode::ffma
