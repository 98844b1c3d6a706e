// The arithmetic of the decode kernels: multiplies one chunk in shared memory into a warp's accumulators.
// Their layout is that of ptx/mma.cuh: acc[token tile][output tile][0..3] of lane 4 g + q = (token g, outputs
// 2 q, 2 q + 1), (token g + 8, the same). Included by decode/kernel.cuh.
//
// The order of k inside a chunk is free as long as both operands agree. So a lane feeds its 16-byte vector of
// a row to two mma unchanged: words 0, 1 are its k of the first, words 2, 3 its k of the second. Mma h takes
//
//   16-bit: k = 8 q + 4 h + {0, 1} for its columns 2 q, 2 q + 1 and
//           k = 8 q + 4 h + {2, 3} for its columns 2 q + 8, 2 q + 9;
//   TF32:   k = 4 q + 2 h for its column q and k = 4 q + 2 h + 1 for its column q + 4.
//
// Both read the same words.
#pragma once

#include "kernels/bsr_linear/sm80/decode/config.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::decode {

struct Bf16Mma {
  using Element = __nv_bfloat16;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

struct F16Mma {
  using Element = __half;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) { return word; }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
};

struct Tf32Mma {
  using Element = float;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t word) {
    return ptx::cvt_rna_tf32(word);
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k8_tf32(d, a, b0, b1);
  }
};

/// Arithmetic on tensor cores.
template <class Mma>
struct MmaMath {
  using Element = typename Mma::Element;

  struct Fragment {
    std::uint32_t word[4];
  };

  static __device__ __forceinline__ Fragment rounded(const uint4& vector) {
    return {{Mma::operand(vector.x), Mma::operand(vector.y), Mma::operand(vector.z), Mma::operand(vector.w)}};
  }

  template <class C>
  static __device__ __forceinline__ Fragment load_b(Forward, const Stage<C>& stage, int lane, int tile) {
    return rounded(stage.w[lane + 32 * tile]);
  }

  template <class C>
  static __device__ __forceinline__ Fragment load_b(Dx, const Stage<C>& stage, int lane, int tile) {
    Fragment b;
    if constexpr (sizeof(Element) == 2) {
      ptx::ldmatrix_x4_trans(b.word, ptx::shared_address(&stage.w[dx_group<Element, C::kStrip>(lane, tile)]));
    } else {
      const auto* words = reinterpret_cast<const std::uint32_t*>(stage.w);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        b.word[j] = Mma::operand(words[8 * dx_group<Element, C::kStrip>(4 * j + lane % 4, tile) + lane / 4]);
    }
    return b;
  }

  template <class C>
  static __device__ __forceinline__ void multiply(float (&acc)[C::kTokenTiles][C::kOutputTiles][4],
                                                  const Stage<C>& stage, int lane, int m) {
    Fragment b[C::kOutputTiles];
#pragma unroll
    for (int n = 0; n < C::kOutputTiles; ++n) b[n] = load_b(typename C::Walk{}, stage, lane, n);
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      if (16 * t >= m) break;
      const Fragment low = rounded(stage.x[lane + 64 * t]);
      const Fragment high = rounded(stage.x[lane + 64 * t + 32]);
      const std::uint32_t first[4] = {low.word[0], high.word[0], low.word[1], high.word[1]};
      const std::uint32_t second[4] = {low.word[2], high.word[2], low.word[3], high.word[3]};
#pragma unroll
      for (int n = 0; n < C::kOutputTiles; ++n) Mma::mma(acc[t][n], first, b[n].word[0], b[n].word[1]);
#pragma unroll
      for (int n = 0; n < C::kOutputTiles; ++n) Mma::mma(acc[t][n], second, b[n].word[2], b[n].word[3]);
    }
  }
};

/// fp32 without rounding of the operands. Each lane computes its own accumulators. Lane q takes the four
/// vectors of a chunk in the order q, q ^ 1, q ^ 2, q ^ 3: with one order for all lanes, the rows 2 q of W,
/// 128 bytes apart, would lie in the same banks.
struct FmaMath {
  using Element = float;

  /// W at k = 4 vector .. + 3 of the lane's outputs 2 q and 2 q + 1 of a tile.
  struct Operands {
    float even[4], odd[4];
  };

  template <class C>
  static __device__ __forceinline__ Operands load_b(Forward, const Stage<C>& stage, int lane, int tile,
                                                    int vector) {
    const auto* rows = reinterpret_cast<const float4*>(stage.w) + 4 * (8 * tile + 2 * (lane % 4)) + vector;
    const float4 even = rows[0], odd = rows[4];
    return {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
  }

  template <class C>
  static __device__ __forceinline__ Operands load_b(Dx, const Stage<C>& stage, int lane, int tile,
                                                    int vector) {
    Operands b;
    const auto* pairs = reinterpret_cast<const float2*>(stage.w) + lane % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 both = pairs[4 * dx_group<float, C::kStrip>(4 * j + vector, tile)];
      b.even[j] = both.x;
      b.odd[j] = both.y;
    }
    return b;
  }

  template <class C>
  static __device__ __forceinline__ void multiply(float (&acc)[C::kTokenTiles][C::kOutputTiles][4],
                                                  const Stage<C>& stage, int lane, int m) {
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
      const int vector = step ^ (lane % 4);
      const auto* x_rows = reinterpret_cast<const float4*>(stage.x) + 4 * (lane / 4) + vector;
      float4 x[2 * C::kTokenTiles];
#pragma unroll
      for (int t = 0; t < 2 * C::kTokenTiles; ++t) x[t] = 8 * t < m ? x_rows[32 * t] : float4{};
#pragma unroll
      for (int n = 0; n < C::kOutputTiles; ++n) {
        const Operands b = load_b(typename C::Walk{}, stage, lane, n, vector);
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

}  // namespace sparseloom::kernels::cuda::decode
