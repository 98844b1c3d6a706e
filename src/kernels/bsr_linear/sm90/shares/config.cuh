// The compile-time side of kernel.cuh: the tile of a thread block, its warps and its ring.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/shares/cut.cuh"

namespace sparseloom::kernels::cuda::shares {

using mma::forward::Bf16;
using mma::forward::F16;
using mma::forward::Swizzle;

// The warps of a thread block: those that multiply, the one that copies, and the one that sets the flag.
inline constexpr int kConsumers = 8, kProducer = kConsumers, kPublisher = kConsumers + 1,
                     kThreads = (kConsumers + 2) * 32;

template <class Element_, bool kDx_, int kStrip_, int kPiece_, int kTokens_>
struct Config {
  using Element = Element_;
  static constexpr bool kDx = kDx_;
  static constexpr int kStrip = kStrip_, kTokens = kTokens_;
  static constexpr int kPiece = kPiece_;  // a piece's extent along the reduction
  // Two warps share a tile of 16 x 16 to 32 x 32 outputs, half of a chunk each, if there are fewer than eight
  // such tiles.
  static constexpr int kWarpsK = kTokens * kStrip >= 8192 ? 1 : 2;
  static constexpr int kWarpsN = kStrip >= 64 || kTokens == 32 ? 2 : 1,
                       kWarpsM = kConsumers / kWarpsK / kWarpsN;
  static constexpr int kWarpTokens = kTokens / kWarpsM, kWarpStrip = kStrip / kWarpsN;
  static constexpr int kFragmentsM = kWarpTokens / 16, kFragmentsN = kWarpStrip / 8;
  static constexpr int kFragments = kTokens / 16 * (kStrip / 8);  // fragments of the tile
  static constexpr int kSteps = kChunk / 16 / kWarpsK;            // steps of a warp in a chunk
  static constexpr int kXBytes = kTokens * kChunk * 2, kWBytes = kStrip * kChunk * 2,
                       kStageBytes = kXBytes + kWBytes;
  static constexpr int kExchangeBytes = kWarpsK == 1 ? 0 : kTokens * kStrip * 4;
  // DRAM's rate times its latency is 33 KB of W per multiprocessor of an H200, and as much of X comes from L2
  // beside it. The ring also hides the time that a strip's end takes.
  static constexpr int kMostStages = (212 * 1024 - kExchangeBytes) / kStageBytes;
  static constexpr int kStages = kMostStages < 12 ? kMostStages : 12;
  static_assert(kTokens % (16 * kWarpsM) == 0 && kFragmentsN % 2 == 0, "fragments are loaded in pairs");
};

/// The content of a stage, and the action after it.
struct Record {
  int end;     // one of the values below
  int steps;   // steps of 16 elements in the stage: 0 for a strip without blocks
  int output;  // the strip's first output
  int last;    // kAdds: the strip's last share
};
inline constexpr int kNoStage = -1;   // after the share's last
inline constexpr int kInside = 0;     // the strip continues
inline constexpr int kComplete = 1;   // it ends, and is complete
inline constexpr int kAdds = 2;       // it ends here but continues in other shares
inline constexpr int kContinues = 3;  // it ends here but began in another share

template <class C>
struct Shared {
  // X [piece][token][k], then W [piece][output][k] (dX: [k][output]), as TMA swizzles them.
  alignas(1024) std::byte ring[C::kStages][C::kStageBytes];
  float4 exchange[C::kExchangeBytes / 16 + 1];
  Record records[C::kStages];
  std::uint64_t full[C::kStages], empty[C::kStages];
  std::uint64_t left, met;  // mbarriers: this share's sums are in the workspace; the others' are
  std::int32_t window[Lists::kWindow];
};

}  // namespace sparseloom::kernels::cuda::shares
