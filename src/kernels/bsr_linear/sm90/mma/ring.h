// Shared memory of a thread block of sm90_mma, as the row divides it: the front, then a ring of stages, each
// of which holds X of a K tile and slots for blocks, then the table (tile.cuh defines the terms).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/entry.h"

namespace sparseloom::kernels::cuda::sm90_mma {

inline constexpr int kProducers = 4, kConsumers = 16, kPlaces = kKTile / kSide;
inline constexpr int kXBytes = kTileTokens * kKTile * 2, kSlotBytes = kSide * kSide * 2;
inline constexpr int kMostStages = 16, kMostSlots = kPlaces * kTileBlockRows;
/// The fewest slots of a stage: enough for all blocks that a consumer warp's two block rows can store in a K
/// tile.
inline constexpr int kLeastSlots = kTileBlockRows / kConsumers * kPlaces;
/// Shared memory of a thread block, and the offset of the ring.
inline constexpr int kSharedBytes = 227 * 1024, kRingBegin = 36 * 1024;

/// Words of the table: the bytes of each block row (a word for four K tiles), the stage descriptors of the
/// consumers for each K tile, and a count per producer.
constexpr int table_words(int k_tiles) {
  return (k_tiles + 3) / 4 * kTileBlockRows + k_tiles * kConsumers + kProducers;
}

struct Ring {
  int stages = 0, slots = 0;
};

/// Chooses the slots of a stage, then as many stages as fit. Blocks are assumed to lie at random; the slots
/// hold five standard deviations more blocks than the mean K tile, since a single K tile with more blocks
/// makes all K tiles take two stages. Each producer needs at least one stage: with fewer, a producer that is
/// ahead would mistake the end of the last but one phase for the one it waits for.
inline Ring ring_of(double density, int k_tiles) {
  const int bytes = kSharedBytes - kRingBegin - table_words(k_tiles) * 4;
  const double mean = kMostSlots * density;
  const int likely = static_cast<int>(mean + 5 * std::sqrt(mean * (1 - density)) + 2);
  const int most = (bytes / kProducers - kXBytes) / kSlotBytes / 2 * 2;
  Ring ring;
  ring.slots = std::clamp(likely + likely % 2, kLeastSlots, std::min(most, kMostSlots));
  ring.stages = std::min(bytes / (kXBytes + ring.slots * kSlotBytes), kMostStages);
  return ring;
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
