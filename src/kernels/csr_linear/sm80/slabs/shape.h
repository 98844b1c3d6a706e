// The division of a product into slabs, and the layout of its shared memory. For the row and the kernel.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparseloom::kernels::cuda::slabs {

/// A thread block's outputs: rows of W (dX: columns) by tokens, 32 per token of a lane.
struct Cut {
  int rows, per_lane;
  constexpr int tokens() const { return 32 * per_lane; }
};
inline constexpr Cut kCuts[] = {{32, 1}, {64, 1}, {128, 1}, {32, 2}, {64, 2}, {128, 2}};
inline constexpr int kCutCount = 6, kWarps = 16;

/// Stride between features of a slab, in elements, such that transposing into it has at most two-way bank
/// conflicts, and the tokens of a lane are aligned to their size.
constexpr int stride_of(int per_lane, int size) {
  return 32 * per_lane + (size == 4 && per_lane == 1 ? 1 : 2);
}
/// Stride between the sums of two rows, in floats.
constexpr int sum_stride_of(int per_lane) { return per_lane == 1 ? 33 : 66; }

/// The strides for device code, which cannot call host functions.
template <int kPerLane, int kSize>
inline constexpr int kStride = stride_of(kPerLane, kSize);
template <int kPerLane>
inline constexpr int kSumStride = sum_stride_of(kPerLane);

/// The shared memory of a thread block, as byte offsets: lists of the warps' elements, sums, the next and end
/// positions of the rows' elements, and a slab with a feature of zeros after it.
struct Room {
  int sums, rows, slab, features, bytes;
};

/// `most`: the most bytes of a thread block; depth: features of the whole product.
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
