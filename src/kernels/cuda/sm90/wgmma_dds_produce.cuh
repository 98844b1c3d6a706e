// The producer: one warp that merges the sorted lists of a tile's lines and starts the copies of each slab that any of them stores.
//
//   line 0   . 1 . . 4 . 6        lanes of group i hold the next entries of line i in registers, kGroup at a time, the
//   line 1   0 1 . . . . 6        following kGroup already under way; one step takes the smallest slab among the lines:
//   steps    0 1     4   6        x of that slab once, and the parts of the lines that have it
//   present  2 3     1   3
//
// The index arrays lie on the device and the host sees only sizes, so this merge is all the plan there is. It costs some 150 cycles
// a step, which the ring hides; entries of the tile after this one are fetched a whole tile ahead, their list's bounds two.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/ptx/sm90/bulk.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"
#include "kernels/cuda/sm90/wgmma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

constexpr unsigned kWarp = 0xffffffff;

/// Of a lane's line in some tile; empty where the tile reaches beyond the last line.
struct Bounds {
  std::int32_t begin = 0, end = 0;
};

template <class T>
__device__ __forceinline__ Bounds fetch_bounds(const Params& params, const Tiles& tiles) {
  Bounds bounds;
  if (!tiles.any(params)) return bounds;
  std::int32_t line = (tiles.place<T>().output >> params.line_log2) + threadIdx.x % 32 / T::kGroup;
  if (line < params.lines) {
    if (params.ordered) line = params.order[line];
    bounds.begin = ptx::ld_global(params.list_begin + line);
    bounds.end = ptx::ld_global(params.list_end + line);
  }
  return bounds;
}

/// One entry of a list: the block's place along the reduction, and of its values. Forward: the values lie in list order, and
/// kSplit keeps the block's kind in place of theirs.
struct Entry {
  std::int32_t along = 0, slot = 0;
};

template <class T>
__device__ __forceinline__ Entry fetch_entry(const Params& params, std::int32_t i, std::int32_t end) {
  Entry entry;
  if (i < end) {
    entry.along = ptx::ld_global(params.along + i);
    if constexpr (T::kIsDx) entry.slot = ptx::ld_global(params.slot + i);
    if constexpr (T::Element::kSplit) entry.slot = ptx::ld_global(params.kind + i);
  }
  return entry;
}

/// A lane's view of its line: equal in all lanes of a group but for the entries, of which each holds every kGroup-th.
struct Cursor {
  std::int32_t position, end;  // next entry of the list
  std::int32_t window;         // position of the group's first lane in `now`; `next` follows it
  Entry now, next;
  int share = 0;  // of a block that spans several slabs: which is next
};

/// What one step copies of a lane's line.
struct Step {
  std::uint32_t record;   // the whole tile's
  std::int32_t slab;      // position along the reduction / kSlab
  int column;             // of the part within its block, along the reduction
  std::int32_t block[2];  // of the line's parts
};

template <class T>
__device__ __forceinline__ Step next_step(const Params& params, Cursor& cursor) {
  const int lane = threadIdx.x % 32, group = lane / T::kGroup * T::kGroup;
  const int index = (cursor.position - cursor.window) & (T::kGroup - 1);
  const bool more = cursor.position < cursor.end;
  const std::int32_t along = __shfl_sync(kWarp, cursor.now.along, group + index);
  std::int32_t block = cursor.position;
  if constexpr (T::kIsDx) block = __shfl_sync(kWarp, cursor.now.slot, group + index);

  // A block is one slab or several, or half of one.
  const int shares_log2 = params.side_log2 - T::kSlabLog2;
  const std::int32_t own = T::kParts == 2 ? along >> 1 : (along << shares_log2) + cursor.share;
  constexpr unsigned kNone = 0x7fffffff;
  unsigned slab = more ? static_cast<unsigned>(own) : kNone;
  if constexpr (T::kLines > 1) slab = __reduce_min_sync(kWarp, slab);
  const bool hit = more && static_cast<unsigned>(own) == slab, leader = lane == group;

  Step step;
  step.slab = static_cast<std::int32_t>(slab);
  step.column = cursor.share * T::kSlab;
  step.block[0] = step.block[1] = block;
  int taken;  // entries
  if constexpr (T::kParts == 2) {
    // The entry behind may be the other half of this slab. It may lie in the window after this one.
    const int behind = index + 1;
    const std::int32_t in_now = __shfl_sync(kWarp, cursor.now.along, group + (behind & (T::kGroup - 1)));
    const std::int32_t in_next = __shfl_sync(kWarp, cursor.next.along, group);
    std::int32_t block_behind = cursor.position + 1;
    if constexpr (T::kIsDx) {
      const std::int32_t slot_now = __shfl_sync(kWarp, cursor.now.slot, group + (behind & (T::kGroup - 1)));
      const std::int32_t slot_next = __shfl_sync(kWarp, cursor.next.slot, group);
      block_behind = behind < T::kGroup ? slot_now : slot_next;
    }
    const std::int32_t along_behind = behind < T::kGroup ? in_now : in_next;
    const bool both = cursor.position + 1 < cursor.end && along_behind >> 1 == own;
    const bool high = along & 1;
    if (both) step.block[1] = block_behind;
    step.record = __ballot_sync(kWarp, leader && hit && !high) | __ballot_sync(kWarp, leader && hit && (high || both)) << 1;
    taken = both ? 2 : 1;
  } else {
    step.record = __ballot_sync(kWarp, leader && hit);
    if constexpr (T::Element::kSplit) {
      const std::int32_t kind = __shfl_sync(kWarp, cursor.now.slot, group + index);
      step.record |= __ballot_sync(kWarp, leader && hit && (kind & 1)) << T::kSpecialBit;
      step.record |= __ballot_sync(kWarp, leader && hit && (kind & 2)) << T::kTinyBit;
    }
    taken = (cursor.share + 1) >> shares_log2;
  }

  if (hit) {
    cursor.position += taken;
    if constexpr (T::kParts == 1) cursor.share = taken ? 0 : cursor.share + 1;
    if (cursor.position - cursor.window >= T::kGroup) {
      cursor.window += T::kGroup;
      cursor.now = cursor.next;
      cursor.next = fetch_entry<T>(params, cursor.window + T::kGroup + lane - group, cursor.end);
    }
  }
  if (!__any_sync(kWarp, cursor.position < cursor.end)) step.record |= T::kLast;
  return step;
}

/// Starts the copies of a stage's steps, of which those behind the last of a tile are empty; the stage is free. A tile without any
/// block is one empty record.
template <class T>
__device__ __forceinline__ void start_copies(const Params& params, const Step (&steps)[T::kSlabs], const Place& place,
                                             std::uint32_t stage, std::uint32_t full, std::uint32_t* record,
                                             [[maybe_unused]] std::int32_t* origin, int producer) {
  // By one lane: its coordinates and the others' are gathered first.
  constexpr int kOwn = T::kLines / T::kProducers;
  std::int32_t row[T::kSlabs][kOwn][T::kParts], column[T::kSlabs];
  [[maybe_unused]] std::int32_t first[T::kLines];
  std::uint32_t parts = 0, x_bytes = 0;
#pragma unroll
  for (int slab = 0; slab < T::kSlabs; ++slab) {
    const Step& step = steps[slab];
    const std::uint32_t present = step.record & T::kAllParts;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        row[slab][i][part] = __shfl_sync(kWarp, step.block[part], (i * T::kProducers + producer) * T::kGroup);
      }
    }
    column[slab] = T::kLines == 1 ? step.column : __shfl_sync(kWarp, step.column, (__ffs(present) - 1) & 31);
    parts |= present << (slab * T::kParts);
    if (present != 0) x_bytes += T::kSlabBytes;
  }
  if constexpr (T::Element::kSplit) {
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) first[line] = __shfl_sync(kWarp, steps[0].block[0], line * T::kGroup);
  }
  if (!ptx::elect_lane()) return;
  if (producer == 0) {
    if constexpr (T::Element::kSplit) {
#pragma unroll
      for (int line = 0; line < T::kLines; ++line)
        origin[line] = (first[line] << (params.side_log2 - T::kSlabLog2)) + column[0] / T::kSlab;
    }
    *record = parts | (steps[T::kSlabs - 1].record & ~T::kAllParts);
  } else {
    x_bytes = 0;
  }
  // Each announces its own copies, if only that it has none: one that fell behind by two rounds of the ring, with nothing to copy
  // in either, would else take the barrier's parity for that of its own round and wait for good.
  const std::uint32_t bytes = x_bytes + __popc(parts >> (producer * T::kGroup) & T::kPartsOfOne) * T::kPartBytes;
  if (bytes == 0) {
    ptx::mbarrier_arrive(full);
  } else {
    ptx::mbarrier_arrive_expect_tx(full, bytes);
  }
  if (parts == 0) return;
  const std::int32_t output = place.output & ((1 << params.line_log2) - 1);  // within a line that is wider than the tile
#pragma unroll
  for (int slab = 0; slab < T::kSlabs; ++slab) {
    if ((steps[slab].record & T::kAllParts) == 0) break;
    if (producer == 0) {
      ptx::tma_load_2d(stage + slab * T::kSlabBytes, &params.x, steps[slab].slab * T::kSlab, place.token, full, params.x_policy);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int line = i * T::kProducers + producer;
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        const int index = slab * T::kParts + part;
        if ((parts & T::present(line, index)) == 0) continue;
        const std::uint32_t to = stage + T::kXBytes + (line * T::kStageParts + index) * T::kPartBytes;
        const std::int32_t from = row[slab][i][part];
        if constexpr (T::Element::kSplit) {
          const std::int64_t part_of_all = (from << (params.side_log2 - T::kSlabLog2)) + column[slab] / T::kSlab;
          const std::byte* const planes = params.planes + (part_of_all << params.line_log2) * (3 * 64);
          if (1 << params.line_log2 == T::kSlice) {
            ptx::bulk_load(to, planes, T::kPartBytes, full, params.values_policy);
          } else {  // half of each plane
#pragma unroll
            for (int plane = 0; plane < 3; ++plane) {
              ptx::bulk_load(to + plane * T::kPlaneBytes, planes + ((plane << params.line_log2) + output) * 64, T::kPlaneBytes,
                             full, params.values_policy);
            }
          }
        } else {
#pragma unroll
          for (int box = 0; box < T::kBoxes; ++box) {
            if constexpr (T::kIsDx) {
              ptx::tma_load_2d(to + box * T::kBoxBytes, &params.values, output + box * T::kBoxColumns,
                               (from << params.side_log2) + column[slab], full, params.values_policy);
            } else {
              ptx::tma_load_2d(to, &params.values, column[slab], (from << params.line_log2) + output, full, params.values_policy);
            }
          }
        }
      }
    }
  }
}

/// One warp of kProducers, all of which walk the same lists.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared, int producer) {
  const int within = threadIdx.x % T::kGroup;
  const std::uint32_t ring = ptx::shared_address(shared.ring), full = ptx::shared_address(shared.full),
                      empty = ptx::shared_address(shared.empty);
  Tiles tiles(params), ahead = tiles;
  Bounds bounds = fetch_bounds<T>(params, ahead);
  Entry first = fetch_entry<T>(params, bounds.begin + within, bounds.end);
  ahead.advance(params);
  Bounds bounds_after = fetch_bounds<T>(params, ahead);
  unsigned turn = 0;
#pragma unroll 1
  for (; tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    Cursor cursor{bounds.begin, bounds.end, bounds.begin, first};
    cursor.next = fetch_entry<T>(params, cursor.window + T::kGroup + within, cursor.end);
    bounds = bounds_after;
    first = fetch_entry<T>(params, bounds.begin + within, bounds.end);
    ahead.advance(params);
    bounds_after = fetch_bounds<T>(params, ahead);

    bool last = false;
    while (!last) {
      Step steps[T::kSlabs];
#pragma unroll
      for (Step& step : steps) step = next_step<T>(params, cursor);
      last = steps[T::kSlabs - 1].record & T::kLast;
      const unsigned stage = turn % T::kStages, parity = turn / T::kStages % 2;
      ++turn;
      ptx::mbarrier_wait(empty + stage * 8, parity ^ 1);
      start_copies<T>(params, steps, place, ring + stage * T::kStageBytes, full + stage * 8, &shared.record[stage],
                      shared.origin[T::Element::kSplit ? stage : 0], producer);
      __syncwarp();
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
