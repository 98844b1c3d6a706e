// The consumers of sm90_mma: 16 warps, each of which multiplies two block rows of the tile by all its tokens.
// An mma.sync multiplies 16 x 16 values by eight tokens, so a block is one operand, and a warp skips absent
// blocks. (wgmma was rejected: it needs 64 rows of one operand, of which a block of 16 fills a quarter, or
// else X in registers and one of 16 branches for every block.)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/store.cuh"
#include "kernels/bsr_linear/sm90/mma/walk.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

/// Loads the values of one block as operand A: 16 outputs x 16 positions of the reduction. `slot` is the
/// address that this lane passes to ldmatrix.
template <class T>
__device__ __forceinline__ void load_block(std::uint32_t (&a)[4], std::uint32_t slot) {
  if constexpr (T::kIsDx) {
    ptx::ldmatrix_x4_trans(a, slot);
  } else {
    ptx::ldmatrix_x4(a, slot);
  }
}

/// Offset in a slot of the block's row that this lane passes to ldmatrix. The four 8 x 8 matrices follow the
/// order of operand A: outputs 0 to 7 and 8 to 15 at the first eight positions of the reduction, then the
/// same outputs at the other eight. Outputs are the block's rows in forward, its columns in dx.
template <class T>
__device__ __forceinline__ std::uint32_t lane_of_slot() {
  const std::uint32_t lane = threadIdx.x % 32, first = lane / 8 % 2, second = lane / 16;
  const std::uint32_t row = (T::kIsDx ? second : first) * 8 + lane % 8, half = T::kIsDx ? first : second;
  return row * 32 + (half ^ row / 4 % 2) * 16;
}

template <class T>
using TokenFragments = std::uint32_t[T::kTokens / 16][4];

template <class T>
__device__ __forceinline__ void multiply(float (&sums)[T::kTokens / 8][4], const std::uint32_t (&a)[4],
                                         const TokenFragments<T>& x) {
#pragma unroll
  for (int n = 0; n < T::kTokens / 8; ++n) {
    const std::uint32_t b[2] = {x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]};
    T::Element::mma(sums[n], a, b);
  }
}

/// Multiplies this warp's blocks of a stage. `stored` is the warp's stage descriptor; `x` and `slot` are the
/// addresses that this lane passes to ldmatrix.
template <class T>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, std::uint32_t stored, std::uint32_t x,
                                               std::uint32_t slot) {
#pragma unroll
  for (int place = 0; place < T::kPlaces; ++place) {
    const std::uint32_t both = stored >> (2 * place) & 3;
    if (both == 0) continue;  // neither block row stores a block here
    std::uint32_t a[4];
    TokenFragments<T> tokens;
#pragma unroll
    for (int i = 0; i < T::kTokens / 16; ++i) ptx::ldmatrix_x4(tokens[i], (x ^ (place * 32)) + i * 16 * 128);
    load_block<T>(a, slot);
    slot += T::kSlotBytes;
    if (both & 1) {
      multiply<T>(sums[0], a, tokens);
      if ((both & 2) == 0) continue;
      load_block<T>(a, slot);
      slot += T::kSlotBytes;
    }
    multiply<T>(sums[1], a, tokens);
  }
}

template <class T>
__device__ __forceinline__ void consume(const Params& params, SharedFront<T>& front, std::byte* ring,
                                        int warp) {
  const int lane = threadIdx.x % 32;
  // This lane's row of X for ldmatrix, whose matrices are eight tokens by eight positions of the reduction,
  // the same tokens by the next eight positions, then the next tokens. TMA has swizzled the chunks of 16
  // bytes, so an XOR with the place finds the chunks of another place.
  std::uint32_t x =
      ptx::shared_address(ring) + (lane / 16 * 8 + lane % 8) * 128 + (lane / 8 % 2 ^ lane % 8) * 16;
  std::uint32_t slots = ptx::shared_address(ring) + T::kXBytes + lane_of_slot<T>();
  ptx::opaque(x), ptx::opaque(slots);
  const Exit exit{ptx::shared_address(front.staging[warp]), ptx::shared_address(&front.residual[warp])};
  Turn<T> turn(params, front);
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    Sums<T> sums = {};
    const Place place{tiles.m_tile() * T::kTokens, tiles.group() * T::kOutputs + warp * T::kStoreColumns};
    const Bias<T> bias = fetch_bias<T>(params, place);
    // Wait for the tile's first stage. Later, a stage's bits come with the previous stage's descriptor.
    ptx::mbarrier_wait(turn.full(), turn.parity());
    std::uint32_t record = ptx::ld_shared_b32(turn.record(warp)), here = record;
#pragma unroll 1
    while (true) {
      if (here & T::kStored)
        multiply_stage<T>(sums, here, x + turn.offset(), slots + turn.offset() + (record & T::kSlots));
      // Release the stage to its producer.
      __syncwarp();
      if (ptx::elect_lane()) ptx::mbarrier_arrive(turn.empty());
      turn.advance();
      if (here & T::kLast) break;
      here = record >> T::kNextShift;
      // Wait for the next stage.
      ptx::mbarrier_wait(turn.full(), turn.parity());
      record = ptx::ld_shared_b32(turn.record(warp));
    }
    store<T>(params, place, bias, exit, sums);
  }
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
