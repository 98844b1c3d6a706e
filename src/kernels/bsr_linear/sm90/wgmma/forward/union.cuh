// Finds which K tiles a tile needs, and which of its block rows store a block there: the union of the block
// rows' sorted lists, computed for one window of kWindow blocks along the reduction at a time.
//
//   along   block row 0    1  4  6  ..        The list's entries are in the lanes of the block row's group
//           block row 1    0  1  6  ..        (kGroup lanes), which fetch them a window ahead.
//   mask    block row 0    . 1 . . 1 . 1 .    It has a bit for each block of the window and is equal in all
//           block row 1    1 1 . . . . 1 .    lanes of the group.
//   union                  1 1 . . 1 . 1 .    Each bit is a step. A ballot tells which block rows have it,
//                                             and the number of bits below tells which block it is.
//
// The index arrays are on the device and the host sees only sizes, so no other planning is done. Rejected:
// taking the smallest list head step by step. Its shuffles and its reduction wait for one another, and took
// longer than multiplying blocks of 32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

constexpr unsigned kWarp = 0xffffffff;

/// The copies of one step; equal in all lanes except for `block`.
struct Step {
  std::uint32_t record;  // descriptor bits of all block rows of the tile
  std::int32_t k_tile;   // position along the reduction / kKTile
  int column;            // offset of the parts in their blocks, along the reduction
  std::int32_t block;    // in lane p of group i: the block of block row i's part p
};

/// Enumerates the steps of one tile after another. Index entries are fetched a window ahead, and the bounds
/// of lists a tile ahead of that.
template <class T>
class Union {
 public:
  __device__ __forceinline__ Union(const Params& params, const Tiles& tiles) : ahead_(tiles) {
    bounds_ = fetch_bounds(params);
    fetch(params, bounds_);
    ahead_.advance(params);
    after_ = fetch_bounds(params);
  }

  /// Begins the next tile, in order, after the previous tile's last step was returned.
  __device__ __forceinline__ void begin_tile() {
    left_ = bounds_;
    steps_ = 0;
    share_ = 0;  // an empty step may have advanced it
    ended_ = false;
  }

  /// Returns the tile's next step. The last step has kLast set. Steps after it, and the only step of a tile
  /// without any block, have kLast set and no parts.
  __device__ __forceinline__ Step next(const Params& params) {
    const bool any = find(params);
    const int bit = any ? __ffs(static_cast<int>(steps_)) - 1 : 0;
    // A block spans one K tile, several, or half of one.
    const int shares_log2 = params.side_log2 - T::kKTileLog2;
    Step step;
    step.record = any ? present(bit) : 0;
    step.block = block(bit);
    step.column = share_ * T::kKTile;
    step.k_tile = T::kParts == 2 ? (first_ + bit) >> 1 : ((first_ + bit) << shares_log2) + share_;
    pass(params);
    if (ended_) step.record |= T::kLast;
    return step;
  }

  /// Like next(), but returns only the descriptor bits.
  __device__ __forceinline__ std::uint32_t next_record(const Params& params) {
    std::uint32_t record = find(params) ? present(__ffs(static_cast<int>(steps_)) - 1) : 0;
    pass(params);
    if (ended_) record |= T::kLast;
    return record;
  }

  /// Skips the tile's next step.
  __device__ __forceinline__ void skip(const Params& params) {
    find(params);
    pass(params);
  }

  /// Whether the tile's last step has been returned or skipped.
  __device__ __forceinline__ bool ended() const { return ended_; }

 private:
  static constexpr int kWindow = 32, kEach = kWindow / T::kGroup;  // blocks; list entries per lane
  static constexpr std::int32_t kNone = 0x7fffffff;

  /// The list of a lane's block row in some tile. It is empty where the tile reaches beyond the last block
  /// row.
  struct Bounds {
    std::int32_t begin = 0, end = 0;
  };

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int group() { return lane() / T::kGroup; }
  /// kGlu: whether this lane's lists are those of the second weight.
  static __device__ __forceinline__ bool of_factors() { return group() % 2 == 1; }
  static __device__ __forceinline__ int within() { return lane() % T::kGroup; }
  static __device__ __forceinline__ std::uint32_t below(int bit) { return (std::uint32_t{1} << bit) - 1; }

  /// The list bounds in the tile of ahead_.
  __device__ __forceinline__ Bounds fetch_bounds(const Params& params) const {
    Bounds bounds;
    if (!ahead_.any(params)) return bounds;
    std::int32_t block_row = (ahead_.template place<T>().output >> params.block_row_log2) + group();
    if constexpr (T::kGlu) block_row /= 2;
    if (block_row < params.block_rows) {
      if (T::kGlu && of_factors()) {
        bounds.begin = ptx::ld_global(params.factor_begin + block_row);
        bounds.end = ptx::ld_global(params.factor_begin + block_row + 1);
        return bounds;
      }
      if (params.ordered) block_row = params.order[block_row];
      bounds.begin = ptx::ld_global(params.list_begin + block_row);
      bounds.end = ptx::ld_global(params.list_end + block_row);
    }
    return bounds;
  }

  /// Fetches the next kWindow entries of each list. They include all entries of the next window.
  __device__ __forceinline__ void fetch(const Params& params, const Bounds& list) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int32_t at = list.begin + i * T::kGroup + within();
      along_[i] = kNone;
      if (at >= list.end) continue;
      along_[i] = ptx::ld_global((T::kGlu && of_factors() ? params.factor_along : params.along) + at);
      if constexpr (T::kIsDx) slot_[i] = ptx::ld_global(params.slot + at);
      if constexpr (T::Element::kBf16x3) slot_[i] = ptx::ld_global(params.kind + at);
    }
  }

  /// The bitwise or over the lanes of each group.
  static __device__ __forceinline__ std::uint32_t any_of_group(std::uint32_t bits) {
#pragma unroll
    for (int apart = 1; apart < T::kGroup; apart *= 2) bits |= __shfl_xor_sync(kWarp, bits, apart);
    return bits;
  }

  /// Opens the next window if this one is used up; returns whether there is a step.
  __device__ __forceinline__ bool find(const Params& params) {
    if (steps_ == 0 && !(T::kKTiles > 1 && ended_)) open_window(params);
    return steps_ != 0;
  }

  /// Moves past the current step.
  __device__ __forceinline__ void pass(const Params& params) {
    if (T::kParts == 2 || ++share_ >> (params.side_log2 - T::kKTileLog2) != 0) {
      share_ = 0;
      steps_ &= steps_ - 1;
    }
    ended_ = steps_ == 0 && !more_;
  }

  /// Opens the first window in which any block row has a block left.
  __device__ __forceinline__ void open_window(const Params& params) {
    first_ = static_cast<std::int32_t>(__reduce_min_sync(kWarp, static_cast<unsigned>(along_[0]))) &
             ~(kWindow - 1);
    // Build each block row's mask of the window.
    std::uint32_t mask = 0;
    [[maybe_unused]] std::uint32_t special = 0, tiny = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned place = static_cast<unsigned>(along_[i] - first_);
      if (along_[i] == kNone || place >= kWindow) continue;
      mask |= std::uint32_t{1} << place;
      if constexpr (T::Element::kBf16x3) {
        special |= static_cast<std::uint32_t>(slot_[i] & 1) << place;
        tiny |= static_cast<std::uint32_t>(slot_[i] >> 1 & 1) << place;
      }
    }
    mask_ = any_of_group(mask);
    if constexpr (T::Element::kBf16x3) {
      special_ = tiny_ = 0;
      if (__any_sync(kWarp, (special | tiny) != 0)) {
        special_ = any_of_group(special);
        tiny_ = any_of_group(tiny);
      }
    }
    if constexpr (T::kIsDx) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) slot_now_[i] = slot_[i];
    }
    // Take the union, and advance the lists.
    base_ = left_.begin;
    left_.begin += __popc(mask_);
    steps_ = __reduce_or_sync(kWarp, T::kParts == 2 ? (mask_ | mask_ >> 1) & 0x55555555 : mask_);
    more_ = __any_sync(kWarp, left_.begin < left_.end);
    // Prefetch the entries of the next window or, at the end of the tile, those of the next tile.
    if (more_) {
      fetch(params, left_);
    } else {
      bounds_ = after_;
      fetch(params, bounds_);
      ahead_.advance(params);
      after_ = fetch_bounds(params);
    }
  }

  /// The block rows that have a part at the bit, with its special bits, as descriptor bits of a stage's first
  /// K tile.
  __device__ __forceinline__ std::uint32_t present(int bit) const {
    const int part = within();
    std::uint32_t record = __ballot_sync(kWarp, part < T::kParts && (mask_ >> (bit + part) & 1) != 0);
    if constexpr (T::Element::kBf16x3) {
      record |= __ballot_sync(kWarp, part == 0 && (special_ >> bit & 1) != 0) << T::kSpecialBit;
      record |= __ballot_sync(kWarp, part == 0 && (tiny_ >> bit & 1) != 0) << T::kTinyBit;
    }
    return record;
  }

  /// The block of this lane's part at the bit: its slot in dx, otherwise its number in list order.
  __device__ __forceinline__ std::int32_t block(int bit) const {
    const int own = within() % T::kParts;
    if constexpr (T::kIsDx) {
      std::int32_t slot = 0;
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        const int number = __popc(mask_ & below(bit + part));
        std::int32_t lane_slot = slot_now_[0];
        if constexpr (kEach > 1) lane_slot = number / T::kGroup == 1 ? slot_now_[1] : lane_slot;
        if constexpr (kEach > 2) {
          lane_slot = number / T::kGroup == 2 ? slot_now_[2] : lane_slot;
          lane_slot = number / T::kGroup == 3 ? slot_now_[3] : lane_slot;
        }
        const std::int32_t of_part = __shfl_sync(kWarp, lane_slot, group() * T::kGroup + number % T::kGroup);
        if (part == own) slot = of_part;
      }
      return slot;
    } else {  // values are in the order of the lists
      return base_ + __popc(mask_ & below(bit + own));
    }
  }

  Tiles ahead_;    // the tile after the next
  Bounds bounds_;  // bounds of the next tile
  Bounds after_;   // bounds of the tile after that
  Bounds left_;    // this tile's entries past the window
  // Entries from left_ on, or from bounds_ at the end of a tile. For kBf16x3, slot_ has the blocks' kinds.
  std::int32_t along_[kEach], slot_[kEach];
  std::int32_t slot_now_[kEach];  // dx: slots of the window's entries
  std::int32_t base_;             // position of the window's first entry in the lists
  std::int32_t first_;            // first block of the window, along the reduction
  std::uint32_t mask_, special_, tiny_;
  std::uint32_t steps_;  // remaining bits of the union
  int share_;            // next K tile of a block that spans several
  bool more_, ended_;    // lists continue past the window; the last step was returned
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
