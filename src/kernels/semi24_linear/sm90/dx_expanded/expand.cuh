// Expands stored values into the registers of wgmma's operand a, which is W^T: its rows are in features, and
// the sixteen k of an instruction are rows of W.
//
// The assignment of 64 in features to rows of a is free, so a lane's four rows (lane / 4 and 8 further, of
// two instructions) are the four members of one group. It then loads a group's two values as a word, from
// four rows of W, and needs no data of other lanes:
//
//   instruction 0  row r: member 0 of group r   row r + 8: member 1        r = lane / 4, of a warp's 8 groups
//   instruction 1  row r: member 2              row r + 8: member 3
//
// prmt gives each member its value or zero. Its selectors come from a table in shared memory, whose sixteen
// words are in sixteen banks; computing them takes twice the instructions of the loop.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/dx_expanded/tile.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::semi24_dx {

__device__ __forceinline__ std::uint32_t permuted(std::uint32_t low, std::uint32_t high,
                                                  std::uint32_t selector) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

/// A byte per member of a group whose positions are `bits`: the selectors of its two bytes, from the group's
/// word (0 to 3) or from zero (4 to 7).
__device__ __forceinline__ std::uint32_t selectors_of(unsigned bits) {
  return 0x44444444u ^ 0x54u << (bits & 3u) * 8 ^ 0x76u << (bits >> 2) * 8;
}

/// The offsets at which a lane reads a stage.
template <class T>
struct Reader {
  std::uint32_t values[2];  // rows 2 q and 2 q + 1 of the first step
  std::uint32_t positions, table, rotation;

  __device__ __forceinline__ Reader(const Shared<T>& shared, int warpgroup)
      : table(ptx::shared_address(shared.selectors)) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, r = lane / 4, q = lane % 4;
    const std::uint32_t block = T::kDivides ? 0 : warpgroup, step = T::kDivides ? warpgroup * T::kSteps : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = 2 * q + i, chunk = warp * 2 + r / 4;
      values[i] = block * T::kValuesBytes + (step * 16 + row) * 128 + (chunk ^ row) * 16 + r % 4 * 4;
    }
    positions = T::kPositionsAt + block * T::kPositionsBytes + ((step * 4 + warp) * 4 + q) * 16;
    rotation = (4 * r - 2) % 32;  // moves four bits to bits 2 to 5, as word offsets in the table
  }

  /// a: the registers of the two instructions of step kStep of the stage at the shared address `stage`.
  template <int kStep>
  __device__ __forceinline__ void expand(std::uint32_t (&a)[2][4], std::uint32_t stage) const {
    std::uint32_t bits[4], low[4], high[4];  // the four rows'; members 0 and 1, 2 and 3
    ptx::ld_shared<4>(bits, stage + positions + kStep * 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t pair =
          ptx::ld_shared_b32(stage + values[i % 2] + kStep * (16 * 128) + i / 2 * (8 * 128));
      const std::uint32_t selector =
          ptx::ld_shared_b32(table + (__funnelshift_r(bits[i], bits[i], rotation) & 60u));
      low[i] = permuted(pair, 0, selector);
      high[i] = permuted(pair, 0, selector >> 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[0][2 * i] = permuted(low[2 * i], low[2 * i + 1], 0x5410);
      a[0][2 * i + 1] = permuted(low[2 * i], low[2 * i + 1], 0x7632);
      a[1][2 * i] = permuted(high[2 * i], high[2 * i + 1], 0x5410);
      a[1][2 * i + 1] = permuted(high[2 * i], high[2 * i + 1], 0x7632);
    }
  }
};

}  // namespace sparseloom::kernels::cuda::semi24_dx
