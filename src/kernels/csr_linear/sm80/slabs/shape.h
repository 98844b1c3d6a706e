// How a product is cut for slabs, and how its shared memory lies. For rows of the registry and kernels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparseloom::kernels::cuda::slabs {

/// A thread block's outputs: rows of W (dX: columns) by tokens, 32 for each token of a lane.
struct Cut {
  int rows, per_lane;
  constexpr int tokens() const { return 32 * per_lane; }
};
inline constexpr Cut kCuts[] = {{32, 1}, {64, 1}, {128, 1}, {32, 2}, {64, 2}, {128, 2}};
inline constexpr int kCutCount = 6, kWarps = 16;

/// Elements between features of a slab. So transposing into it meets each bank at most twice, and the tokens
/// of a lane lie at a multiple of their size.
constexpr int stride_of(int per_lane, int size) {
  return 32 * per_lane + (size == 4 && per_lane == 1 ? 1 : 2);
}
/// Floats between the sums of two rows.
constexpr int sum_stride_of(int per_lane) { return per_lane == 1 ? 33 : 66; }

/// The same for device code, which calls no functions of the host.
template <int kPerLane, int kSize>
inline constexpr int kStride = stride_of(kPerLane, kSize);
template <int kPerLane>
inline constexpr int kSumStride = sum_stride_of(kPerLane);

/// The shared memory of a thread block, in bytes from its start: lists of the warps' elements, sums, where
/// the rows' elements go on and end, and a slab with a feature of zeros behind it.
struct Room {
  int sums, rows, slab, features, bytes;
};

/// `most`: bytes that a thread block may have; depth: features of the whole product.
constexpr Room room_of(const Cut& cut, int size, std::int64_t depth, int most) {
  Room room{};
  room.sums = kWarps * 32 * 8;
  room.rows = room.sums + cut.rows * sum_stride_of(cut.per_lane) * 4;
  room.slab = (room.rows + cut.rows * 8 + 15) / 16 * 16;
  const int feature = stride_of(cut.per_lane, size) * size;
  const std::int64_t fit = std::max((most - room.slab) / feature - 1, 32) / 32 * 32;
  // Slabs of equal size.
  const std::int64_t slabs = std::max<std::int64_t>((depth + fit - 1) / fit, 1);
  room.features = static_cast<int>(((depth + slabs - 1) / slabs + 31) / 32 * 32);
  room.bytes = room.slab + (room.features + 1) * feature;
  return room;
}

}  // namespace sparseloom::kernels::cuda::slabs
