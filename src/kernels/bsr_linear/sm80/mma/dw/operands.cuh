// Operands of the dW kernel: loads from [tokens][columns] tiles in shared memory into MMA registers. Tokens
// are the MMA's K, gathered columns of X its M (operand A), rows of the block its N (operand B). Both are
// transposed on the way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::mma::dw {

struct Bf16 {
  using Word = std::uint16_t;
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ Word round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

struct F16 {
  using Word = std::uint16_t;
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  static __device__ __forceinline__ Word round(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};

struct Tf32 {
  using Word = std::uint32_t;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t bits) {
    return ptx::cvt_rna_tf32(bits);
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    ptx::mma_m16n8k8_tf32(d, a, b0, b1);
  }
  static __device__ __forceinline__ Word round(float value) { return __float_as_uint(value); }
};

/// A warp's operands of one step of k. x: its 16-column fragments; y: its 8-row fragments, two per entry.
template <class Config>
struct Fragments {
  std::uint32_t x[Config::kPieces][4];
  std::uint32_t y[(Config::kSlices + 1) / 2][4];
};

/// This lane's read addresses, in bytes from the beginning of a tile: one offset per operand. The lane's
/// other offsets differ from it by an exclusive or (within the 128 bytes that the swizzle permutes) and an
/// addition (beyond them, and from step to step, after which the swizzle repeats). Tiles begin at multiples
/// of 128 bytes, so that both work on whole offsets. An offset per fragment would be clearer, but ptxas
/// recomputes those in every stage: 40 instructions beside 64 mma.
template <class Config, int kBytes = sizeof(typename Config::Word)>
struct LaneReads;

/// 16-bit: ldmatrix.trans. A lane gives the address of an 8-column row of one of four 8 x 8 matrices.
template <class Config>
struct LaneReads<Config, 2> {
  using X = typename Config::TileX;
  using Y = typename Config::TileY;
  static constexpr int kPieceBytes =
      Config::kWarpColumns * 32;  // stride between a warp's column fragments: 64 or 128
  int x, y;

  __device__ __forceinline__ LaneReads(int lane, int warp_column, int warp_row) {
    const int matrix = lane / 8;
    // A's matrices: columns 0-7, 8-15 of tokens 0-7, then the same of tokens 8-15.
    x = X::offset(matrix / 2 * 8 + lane % 8, 2 * warp_column + matrix % 2);
    // B's matrices: tokens 0-7, 8-15 of one row fragment, then of the next. A single one uses the first two;
    // the other lanes' addresses are ignored.
    y = Y::offset(matrix % 2 * 8 + lane % 8,
                  warp_row * Config::kSlices + (Config::kSlices == 1 ? 0 : matrix / 2));
  }

  __device__ __forceinline__ void load(Fragments<Config>& to, const std::byte* shared, int stage,
                                       int step) const {
    const std::uint32_t x_near = ptx::shared_address(shared) + stage + x;
    const std::uint32_t y_near = ptx::shared_address(shared) + stage + Config::kTileXBytes + y;
    const int x_step = step * Config::kStep * X::kPitch, y_step = step * Config::kStep * Y::kPitch;
#pragma unroll
    for (int i = 0; i < Config::kPieces; ++i) {
      ptx::ldmatrix_x4_trans(to.x[i],
                             (x_near ^ i * kPieceBytes % 128) + i * kPieceBytes / 128 * 128 + x_step);
    }
    if constexpr (Config::kSlices == 1) {
      std::uint32_t lone[2];
      ptx::ldmatrix_x2_trans(lone, y_near + y_step);
      to.y[0][0] = lone[0];
      to.y[0][1] = lone[1];
    } else {
#pragma unroll
      for (int j = 0; j < Config::kSlices / 2; ++j)
        ptx::ldmatrix_x4_trans(to.y[j], (y_near ^ j * 32) + y_step);
    }
  }
};

/// TF32: 32-bit loads, since ldmatrix transposes 16-bit elements only. Lanes q = lane % 4 read token q, lanes
/// g = lane / 4 column g.
template <class Config>
struct LaneReads<Config, 4> {
  using X = typename Config::TileX;
  using Y = typename Config::TileY;
  static constexpr int kPieceBytes = Config::kWarpColumns * 64;  // stride between a warp's column fragments
  static_assert(kPieceBytes % 128 == 0,
                "column fragments must be a multiple of 128 bytes apart, where the swizzle repeats");
  int x, y;

  __device__ __forceinline__ LaneReads(int lane, int warp_column, int warp_row) {
    const int q = lane % 4, g = lane / 4;
    x = X::offset(q, 4 * warp_column + g / 4) + g % 4 * 4;
    y = Y::offset(q, 2 * warp_row * Config::kSlices + g / 4) + g % 4 * 4;
  }

  static __device__ __forceinline__ std::uint32_t read(const std::byte* address) {
    return Config::Type::operand(*reinterpret_cast<const std::uint32_t*>(address));
  }

  __device__ __forceinline__ void load(Fragments<Config>& to, const std::byte* shared, int stage,
                                       int step) const {
    const int x_near = stage + x, y_near = stage + Config::kTileXBytes + y;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // tokens q and q + 4: the swizzle repeats after 4
      const std::byte* x_tokens = shared + (step * Config::kStep + 4 * half) * X::kPitch;
      const std::byte* y_tokens = shared + (step * Config::kStep + 4 * half) * Y::kPitch;
#pragma unroll
      for (int i = 0; i < Config::kPieces; ++i) {
        to.x[i][2 * half] = read(x_tokens + x_near + i * kPieceBytes);
        to.x[i][2 * half + 1] = read(x_tokens + (x_near ^ 32) + i * kPieceBytes);  // column g + 8
      }
#pragma unroll
      for (int j = 0; j < Config::kSlices; ++j) {
        to.y[j / 2][2 * (j % 2) + half] = read(y_tokens + (y_near ^ j % 4 * 32) + j / 4 * 128);
      }
    }
  }
};

}  // namespace sparseloom::kernels::cuda::mma::dw
