// The constants of decode/kernel.cuh, and the layout of a chunk of k in shared memory.
#pragma once

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode/params.cuh"

namespace sparseloom::kernels::cuda::decode {

template <class Element_, class Walk_, int kStrip_, int kTokenTiles_>
struct Config {
  using Element = Element_;
  using Walk = Walk_;
  static constexpr int kStrip = kStrip_;            // outputs of a thread block
  static constexpr int kTokenTiles = kTokenTiles_;  // 16 tokens each, the M of an mma
  static constexpr int kOutputTiles = kStrip / 8;   // the N of an mma
  static constexpr int kTokens = 16 * kTokenTiles;
  // Elements of k in a 16-byte vector. Block sides are multiples of 8, so a vector lies in one block.
  static constexpr int kVector = 16 / sizeof(Element);
  static constexpr int kChunk = 4 * kVector;               // k of a warp's step: 64 bytes per row
  static constexpr int kVectorsAcross = kStrip / kVector;  // dX: 16-byte vectors in a row of the strip
  static constexpr int kStages = stages_of(kTokenTiles);
  static constexpr int kMostWarps = decode::kMostWarps;
  static constexpr int kWarpsPerMultiprocessor = warps_per_multiprocessor(kStrip, kTokenTiles);

  static_assert(kStrip == 8 || kStrip == 16 || kStrip == 32,
                "strips divide every block side of at least their width");
  static_assert(32 / kVectorsAcross % kVector == 0, "dX: all vectors that a lane copies have the same k");
};

/// One chunk: 64-byte rows, with vector q of row r at [4 r + q]. In forward, lane 4 g + q copies vector q of
/// rows g, g + 8, ... and multiplies exactly these, so the ring acts as a register file with room for the
/// loads in flight.
template <class C>
struct Stage {
  uint4 w[C::kStrip * 4];   // forward: [output][k]; dX: [k][output], permuted by dx_row, dx_group
  uint4 x[C::kTokens * 4];  // [token][k]
};

/// At the end, each warp's ring is overwritten with its partial sums.
template <class C>
inline constexpr bool kPartialsFit = C::kTokens* C::kStrip * sizeof(float) <= C::kStages * sizeof(Stage<C>);

/// The permuted position of row k of a chunk in dX: the rows that one load instruction of the multiplication
/// reads are adjacent. 16 bits: matrix 2h + s of an ldmatrix.x4 reads the rows whose k is 8 a + 4 h + 2 s +
/// e, in the order 2 a + e (decode/math.cuh explains the order of k). 32 bits: lane q reads k = 4 q + j for
/// one j at a time.
template <class Element>
__host__ __device__ constexpr int dx_row(int k) {
  return sizeof(Element) == 2 ? 8 * (k >> 1 & 3) + 2 * (k >> 3) + (k & 1) : 4 * (k & 3) + (k >> 2);
}

/// Index, in groups of 8 outputs (16 or 32 bytes), of output group `group` of the permuted row `row`,
/// swizzled so that the 8 rows of an ldmatrix (16 bits) or the 4 rows of a load (32 bits) lie in different
/// banks.
template <class Element, int kStrip>
__host__ __device__ constexpr int dx_group(int row, int group) {
  constexpr int kGroups = kStrip / 8;
  constexpr int kGroupsPerBankLine = 128 / (8 * sizeof(Element));
  return row * kGroups + (group ^ (row * kGroups / kGroupsPerBankLine & (kGroups - 1)));
}

}  // namespace sparseloom::kernels::cuda::decode
