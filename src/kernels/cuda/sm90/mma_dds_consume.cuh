// The consumers: 16 warps, each with two lines of the tile and all its tokens. mma.sync of 16 x 16 values by
// eight tokens: a block is one operand, and a warp passes over what its lines do not store. (wgmma would want
// 64 rows of one operand, of which blocks of 16 fill a quarter, or X in registers and one of 16 branches for
// every block.)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/sm90/mma_dds_store.cuh"
#include "kernels/cuda/sm90/mma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

/// Values of one block as the first operand: 16 outputs x 16 of the reduction. slot: as this lane reads it.
template <class T>
__device__ __forceinline__ void load_block(std::uint32_t (&a)[4], std::uint32_t slot) {
  if constexpr (T::kIsDx) {
    ptx::ldmatrix_x4_trans(a, slot);
  } else {
    ptx::ldmatrix_x4(a, slot);
  }
}

/// Where this lane's row of a block lies in its slot. The quarters in the order of the operand: outputs 0 to
/// 7 and 8 to 15 of the reduction's first eight, then of its others. Outputs are the block's rows, in dx its
/// columns.
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

/// One warp's share of a stage. x, slot: as this lane reads them.
template <class T>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, std::uint32_t stored, std::uint32_t x,
                                               std::uint32_t slot) {
#pragma unroll
  for (int place = 0; place < T::kPlaces; ++place) {
    const std::uint32_t both = stored >> (2 * place) & 3;
    if (both == 0) continue;
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
  // Of x, as ldmatrix takes it: eight tokens by eight of the reduction, then by the next eight, then the next
  // tokens. The chunks of 16 bytes lie as TMA's swizzle puts them: those of the next place are found by
  // exchanging bits.
  std::uint32_t x =
      ptx::shared_address(ring) + (lane / 16 * 8 + lane % 8) * 128 + (lane / 8 % 2 ^ lane % 8) * 16;
  std::uint32_t slots = ptx::shared_address(ring) + T::kXBytes + lane_of_slot<T>();
  ptx::opaque(x), ptx::opaque(slots);
  const Exit exit{ptx::shared_address(front.staging[warp]), ptx::shared_address(&front.residual[warp])};
  Turn<T> turn(params, front);
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    Sums<T> sums = {};
    const Place place{tiles.panel() * T::kTokens, tiles.group() * T::kOutputs + warp * T::kStoreColumns};
    const Bias<T> bias = fetch_bias<T>(params, place);
    ptx::mbarrier_wait(turn.full(), turn.parity());
    std::uint32_t record = ptx::ld_shared_b32(turn.record(warp)), here = record;
#pragma unroll 1
    while (true) {
      if (here & T::kStored)
        multiply_stage<T>(sums, here, x + turn.offset(), slots + turn.offset() + (record & T::kSlots));
      __syncwarp();
      if (ptx::elect_lane()) ptx::mbarrier_arrive(turn.empty());
      turn.advance();
      if (here & T::kLast) break;
      here = record >> T::kNextShift;
      ptx::mbarrier_wait(turn.full(), turn.parity());
      record = ptx::ld_shared_b32(turn.record(warp));
    }
    store<T>(params, place, bias, exit, sums);
  }
}

}  // namespace sparseloom::kernels::cuda::mma_dds
