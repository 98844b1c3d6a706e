// Which slabs a tile needs, and which of its lines store something there: the union of the lines' sorted
// lists, taken a window of kWindow blocks along the reduction at a time.
//
//   along    line 0    1  4  6  ..        entries kGroup lanes apart, of line i in the lanes of group i,
//   fetched a window ahead
//            line 1    0  1  6  ..
//   mask     line 0    . 1 . . 1 . 1 .    one bit for each block of the window, equal in all lanes of the
//   group
//            line 1    1 1 . . . . 1 .
//   union              1 1 . . 1 . 1 .    a step for each of its bits: who is present is one ballot, and
//   which block it is the
//                                         number of bits below
//
// The index arrays lie on the device and the host sees only sizes, so this is all the plan there is.
// Rejected: taking the smallest of the lists' heads step by step; its shuffles and reduction wait for one
// another, and took longer than blocks of 32 multiply.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"
#include "kernels/cuda/sm90/wgmma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

constexpr unsigned kWarp = 0xffffffff;

/// What one step copies, equal in all lanes but for `block`.
struct Step {
  std::uint32_t record;  // the whole tile's
  std::int32_t slab;     // position along the reduction / kSlab
  int column;            // of the parts within their blocks, along the reduction
  std::int32_t block;    // lane p of group i: of line i's part p
};

template <class T>
class Union {
 public:
  __device__ __forceinline__ Union(const Params& params, const Tiles& tiles) : ahead_(tiles) {
    bounds_ = fetch_bounds(params);
    fetch(params, bounds_);
    ahead_.advance(params);
    after_ = fetch_bounds(params);
  }

  /// The tiles are begun one after the other, each when the one before has given its last step.
  __device__ __forceinline__ void begin_tile() {
    left_ = bounds_;
    steps_ = 0;
    share_ = 0;  // an empty step has moved it on
    ended_ = false;
  }

  /// The tile's next step. The last is marked; those behind it, and the only one of a tile without any block,
  /// are marked and empty.
  __device__ __forceinline__ Step next(const Params& params) {
    const bool any = find(params);
    const int bit = any ? __ffs(static_cast<int>(steps_)) - 1 : 0;
    // A block is one slab or several, or half of one.
    const int shares_log2 = params.side_log2 - T::kSlabLog2;
    Step step;
    step.record = any ? present(bit) : 0;
    step.block = block(bit);
    step.column = share_ * T::kSlab;
    step.slab = T::kParts == 2 ? (first_ + bit) >> 1 : ((first_ + bit) << shares_log2) + share_;
    pass(params);
    if (ended_) step.record |= T::kLast;
    return step;
  }

  /// The record alone of the tile's next step.
  __device__ __forceinline__ std::uint32_t next_record(const Params& params) {
    std::uint32_t record = find(params) ? present(__ffs(static_cast<int>(steps_)) - 1) : 0;
    pass(params);
    if (ended_) record |= T::kLast;
    return record;
  }

  /// Passes over the tile's next step.
  __device__ __forceinline__ void skip(const Params& params) {
    find(params);
    pass(params);
  }

  /// Whether the tile's last step is given or passed over.
  __device__ __forceinline__ bool ended() const { return ended_; }

 private:
  static constexpr int kWindow = 32, kEach = kWindow / T::kGroup;  // blocks; entries of a lane
  static constexpr std::int32_t kNone = 0x7fffffff;

  /// Of a lane's line in some tile; empty where the tile reaches beyond the last line.
  struct Bounds {
    std::int32_t begin = 0, end = 0;
  };

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int group() { return lane() / T::kGroup; }
  static __device__ __forceinline__ int within() { return lane() % T::kGroup; }
  static __device__ __forceinline__ std::uint32_t below(int bit) { return (std::uint32_t{1} << bit) - 1; }

  /// Of the tile that ahead_ is at.
  __device__ __forceinline__ Bounds fetch_bounds(const Params& params) const {
    Bounds bounds;
    if (!ahead_.any(params)) return bounds;
    std::int32_t line = (ahead_.template place<T>().output >> params.line_log2) + group();
    if (line < params.lines) {
      if (params.ordered) line = params.order[line];
      bounds.begin = ptx::ld_global(params.list_begin + line);
      bounds.end = ptx::ld_global(params.list_end + line);
    }
    return bounds;
  }

  /// The next kWindow entries of each list: those of the next window, and more.
  __device__ __forceinline__ void fetch(const Params& params, const Bounds& list) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int32_t at = list.begin + i * T::kGroup + within();
      along_[i] = kNone;
      if (at >= list.end) continue;
      along_[i] = ptx::ld_global(params.along + at);
      if constexpr (T::kIsDx) slot_[i] = ptx::ld_global(params.slot + at);
      if constexpr (T::Element::kSplit) slot_[i] = ptx::ld_global(params.kind + at);
    }
  }

  /// Ors what the lanes of each group have.
  static __device__ __forceinline__ std::uint32_t any_of_group(std::uint32_t bits) {
#pragma unroll
    for (int apart = 1; apart < T::kGroup; apart *= 2) bits |= __shfl_xor_sync(kWarp, bits, apart);
    return bits;
  }

  /// Whether there is a step.
  __device__ __forceinline__ bool find(const Params& params) {
    if (steps_ == 0 && !(T::kSlabs > 1 && ended_)) open_window(params);
    return steps_ != 0;
  }

  __device__ __forceinline__ void pass(const Params& params) {
    if (T::kParts == 2 || ++share_ >> (params.side_log2 - T::kSlabLog2) != 0) {
      share_ = 0;
      steps_ &= steps_ - 1;
    }
    ended_ = steps_ == 0 && !more_;
  }

  /// The first window that has a block of any line left.
  __device__ __forceinline__ void open_window(const Params& params) {
    first_ = static_cast<std::int32_t>(__reduce_min_sync(kWarp, static_cast<unsigned>(along_[0]))) &
             ~(kWindow - 1);
    std::uint32_t mask = 0;
    [[maybe_unused]] std::uint32_t special = 0, tiny = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned place = static_cast<unsigned>(along_[i] - first_);
      if (along_[i] == kNone || place >= kWindow) continue;
      mask |= std::uint32_t{1} << place;
      if constexpr (T::Element::kSplit) {
        special |= static_cast<std::uint32_t>(slot_[i] & 1) << place;
        tiny |= static_cast<std::uint32_t>(slot_[i] >> 1 & 1) << place;
      }
    }
    mask_ = any_of_group(mask);
    if constexpr (T::Element::kSplit) {
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
    base_ = left_.begin;
    left_.begin += __popc(mask_);
    steps_ = __reduce_or_sync(kWarp, T::kParts == 2 ? (mask_ | mask_ >> 1) & 0x55555555 : mask_);
    more_ = __any_sync(kWarp, left_.begin < left_.end);
    if (more_) {
      fetch(params, left_);
    } else {  // the next tile's first
      bounds_ = after_;
      fetch(params, bounds_);
      ahead_.advance(params);
      after_ = fetch_bounds(params);
    }
  }

  /// Of a stage's first slab.
  __device__ __forceinline__ std::uint32_t present(int bit) const {
    const int part = within();
    std::uint32_t record = __ballot_sync(kWarp, part < T::kParts && (mask_ >> (bit + part) & 1) != 0);
    if constexpr (T::Element::kSplit) {
      record |= __ballot_sync(kWarp, part == 0 && (special_ >> bit & 1) != 0) << T::kSpecialBit;
      record |= __ballot_sync(kWarp, part == 0 && (tiny_ >> bit & 1) != 0) << T::kTinyBit;
    }
    return record;
  }

  __device__ __forceinline__ std::int32_t block(int bit) const {
    const int own = within() % T::kParts;
    if constexpr (T::kIsDx) {
      std::int32_t slot = 0;
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        const int number = __popc(mask_ & below(bit + part));
        std::int32_t mine = slot_now_[0];
        if constexpr (kEach > 1) mine = number / T::kGroup == 1 ? slot_now_[1] : mine;
        if constexpr (kEach > 2) {
          mine = number / T::kGroup == 2 ? slot_now_[2] : mine;
          mine = number / T::kGroup == 3 ? slot_now_[3] : mine;
        }
        const std::int32_t of_part = __shfl_sync(kWarp, mine, group() * T::kGroup + number % T::kGroup);
        if (part == own) slot = of_part;
      }
      return slot;
    } else {  // the values lie in the order of the lists
      return base_ + __popc(mask_ & below(bit + own));
    }
  }

  Tiles ahead_;    // the tile after the next
  Bounds bounds_;  // of the lists of the tile to begin next
  Bounds after_;   // and of the one behind it
  Bounds left_;    // of this tile's, what lies behind the window
  std::int32_t along_[kEach],
      slot_[kEach];  // entries from there on, or of the next tile; kSplit: the block's kind for its slot
  std::int32_t slot_now_[kEach];  // the window's, dx
  std::int32_t base_;             // position of the window's first entry
  std::int32_t first_;            // block of the window, along the reduction
  std::uint32_t mask_, special_, tiny_;
  std::uint32_t steps_;  // bits of the union that are left
  int share_;            // of a block that spans several slabs: which is next
  bool more_, ended_;    // lists go on behind the window; the last step is given
};

}  // namespace sparseloom::kernels::cuda::wgmma_dds
