// fp32 products on bf16 tensor cores (bf16x3). x and w are each the sum of three bf16 terms, truncated
// towards zero (blocks.h), and six of the nine products are added:
//
//   x w ~ xh wh + (xh wm + xm wh) + (xm wm + xh wl + xl wh)
//
// The omitted xm wl, xl wm and xl wl are below 2^-21 of x w. The tensor cores add from the smallest to the
// largest term and over 32 k only, because longer sums lose bits in them; fp32 registers add these sums. x
// arrives as fp32 and is split on its way into registers: writing and reading planes of x would move 1.5
// times its bytes.
//
// Values that three bf16 cannot hold are zero in the planes, and FFMA multiplies them in fp32. That concerns
// tokens whose 32 k include an infinity or are all below 2^-100, and blocks of that kind. So no element's
// bits depend on other tokens or other blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/store.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/special.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// Operand registers for a warp's 16 tokens x 32 k.
struct Bf16x3X {
  std::uint32_t part[3][2][4];  // high, middle, low; step of 16 k; register
  bool special[2];              // tokens lane / 4 and lane / 4 + 8 are zero in the terms
  bool any_special;             // in the warp
};

/// Truncates to bf16, which rounds towards zero. NaN may become Inf here, and the next term NaN.
__device__ __forceinline__ float upper_half(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffff0000u);
}

/// Loads x and splits it. `row` is the shared address of the row (128 bytes) of token lane / 4 of the warp's
/// 16. Lane 4 i + q reads k from 8 q on, of tokens i and i + 8. Eight lanes then read two tokens, and no two
/// lanes meet in a bank.
__device__ __forceinline__ Bf16x3X bf16x3_x(std::uint32_t row) {
  const int lane = threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
  Bf16x3X x;
  float loaded[2][2][4];  // token, step, k
  float largest[2];       // fmaxf drops NaN, which the terms can hold
#pragma unroll
  for (int below = 0; below < 2; ++below) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t words[4];
      ptx::ld_shared<4>(words, row + below * 8 * 128 + ((quarter * 2 + step) ^ token) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) loaded[below][step][i] = __uint_as_float(words[i]);
    }
    largest[below] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest[below] = fmaxf(largest[below], fabsf(loaded[below][i / 4][i % 4]));
    x.special[below] = false;
  }
  // Four lanes share a token's 32 k. If the token is special, so are the values of at least one of these
  // lanes; nearly always the warp has no special token.
  x.any_special = __any_sync(0xffffffff, is_special(largest[0]) || is_special(largest[1]));
  if (x.any_special) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      float of_token = fmaxf(largest[below], __shfl_xor_sync(0xffffffff, largest[below], 1));
      of_token = fmaxf(of_token, __shfl_xor_sync(0xffffffff, of_token, 2));
      x.special[below] = is_special(of_token);
      if (x.special[below]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) loaded[below][i / 4][i % 4] = 0;
      }
    }
  }
#pragma unroll
  for (int below = 0; below < 2; ++below) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        float low = loaded[below][step][pair * 2], high = loaded[below][step][pair * 2 + 1];
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          x.part[part][step][pair * 2 + below] =
              __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
          low -= upper_half(low), high -= upper_half(high);
        }
      }
    }
  }
  return x;
}

/// Adds the products that the terms of x and w omit. `w` has the block's values from the K tile's first k on.
/// Products of an ordinary token and an ordinary value are already in the sums; they are skipped, so that no
/// bit of them changes.
template <class T>
__device__ __forceinline__ void add_special(const Params& params, float (&sums)[T::kSlice / 2],
                                            std::uint32_t row, const bool (&special)[2], const float* w,
                                            bool tiny) {
  const int lane = threadIdx.x % 32, token = lane / 4;
#pragma unroll 1
  for (int k = 0; k < 32; ++k) {
    const std::uint32_t from = row + ((k / 4) ^ token) * 16 + k % 4 * 4;
    const float x[2] = {__uint_as_float(ptx::ld_shared_b32(from)),
                        __uint_as_float(ptx::ld_shared_b32(from + 8 * 128))};
#pragma unroll
    for (int i = 0; i < T::kSlice / 4; ++i) {
      const float value =
          ptx::ld_global(w + (i / 2 * 8 + lane % 4 * 2 + i % 2) * params.block_row_step + k * params.step);
      const bool infinite = fabsf(value) == __uint_as_float(0x7f800000u);
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float& sum = sums[i / 2 * 4 + below * 2 + i % 2];
        if (special[below] || tiny || infinite) sum = fmaf(x[below], value, sum);
      }
    }
  }
}

/// sum = x parts^T for the present block rows; the others' sums are unchanged. `parts` is a shared address /
/// 16.
template <class T>
__device__ __forceinline__ void multiply_bf16x3(float (&sum)[T::kBlockRows][T::kSlice / 2], const Bf16x3X& x,
                                                std::uint32_t parts, std::uint32_t record) {
  static_assert(T::kTokenBlocks == 1 && T::kPart == 32 && T::kKTiles == 1,
                "a warp has one fragment of x, and holds its sums twice");
  constexpr std::uint32_t kPlane = T::kPlaneBytes / 16;
  ptx::wgmma_fence();
#pragma unroll
  for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
    if ((record & T::present(block_row, 0)) == 0) continue;
    const std::uint32_t w = parts + block_row * 3 * kPlane;
    constexpr int kProducts[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};  // terms of x, w
#pragma unroll
    for (int product = 0; product < 6; ++product) {
#pragma unroll
      for (int step = 0; step < 2; ++step)
        ptx::wgmma_bf16_k_major(sum[block_row], x.part[kProducts[product][0]][step],
                                T::kDescriptorPlane | (w + kProducts[product][1] * kPlane + step * 2),
                                product > 0 || step > 0);
    }
    ptx::wgmma_commit();
  }
}

/// Adds the products of a K tile that the planes omit. `row` is as in bf16x3_x. `origin` has, for each
/// present block row, its block in list order and the K tile within it.
template <class T>
__device__ __forceinline__ void add_specials(const Params& params, const Place& place, Sums<T>& sums,
                                             std::uint32_t row, const Bf16x3X& x, std::uint32_t record,
                                             const std::int32_t (&origin)[T::kBlockRows]) {
  if (!x.any_special && (record & T::kAnySpecial) == 0) return;
#pragma unroll
  for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
    if ((record & T::present(block_row, 0)) == 0 || !(x.any_special || (record & T::special(block_row)) != 0))
      continue;
    // Read by the lane that releases the stage; see consume().
    const std::int32_t from = __shfl_sync(0xffffffff, threadIdx.x % 32 == 0 ? origin[block_row] : 0, 0);
    const int shares_log2 = params.side_log2 - T::kKTileLog2, share = from & ((1 << shares_log2) - 1);
    const std::int32_t block = from >> shares_log2;
    const std::int64_t slot = params.slot != nullptr ? ptx::ld_global(params.slot + block) : block;
    const std::int32_t output = T::kBlockRows == 1 ? place.output & ((1 << params.block_row_log2) - 1)
                                                   : 0;  // if a block row is wider than the tile
    const float* const values = params.exact + (slot << (params.block_row_log2 + params.side_log2)) +
                                share * T::kKTile * params.step + output * params.block_row_step;
    add_special<T>(params, sums[0][block_row], row, x.special, values, (record & T::tiny(block_row)) != 0);
  }
}

/// The products of one K tile in flight: the tensor cores' own sums for all block rows at once, and the terms
/// of x, which the tensor cores read meanwhile.
template <class T>
struct Bf16x3KTile {
  Bf16x3X x;
  float sum[T::kBlockRows][T::kSlice / 2];

  /// `from`, the warpgroup's first row of x, and `parts` are shared addresses / 16. Splitting the next K
  /// tile's x while the tensor cores work on this one measured faster at side 32 but slower at 64 and 128:
  /// the other warpgroup keeps them busy.
  __device__ __forceinline__ void multiply(std::uint32_t from, std::uint32_t parts, std::uint32_t record) {
    x = bf16x3_x(row_of(from));
    multiply_bf16x3<T>(sum, x, parts, record);
  }

  /// Call it when the products have finished, before the stage is released.
  __device__ __forceinline__ void add_specials(const Params& params, const Place& place, Sums<T>& sums,
                                               std::uint32_t from, std::uint32_t record,
                                               const std::int32_t (&origin)[T::kBlockRows]) {
    wgmma::forward::add_specials<T>(params, place, sums, row_of(from), x, record, origin);
  }

  /// Call it when the products have finished; the stage may have been released.
  __device__ __forceinline__ void add_to(Sums<T>& sums, std::uint32_t record) {
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
      if ((record & T::present(block_row, 0)) == 0) continue;
      ptx::pin(sum[block_row]);
#pragma unroll
      for (int i = 0; i < T::kSlice / 2; ++i) sums[0][block_row][i] += sum[block_row][i];
    }
  }

 private:
  /// Shared address of the lane's first row.
  static __device__ __forceinline__ std::uint32_t row_of(std::uint32_t from) {
    return from * 16 + (threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) * 128;
  }
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
