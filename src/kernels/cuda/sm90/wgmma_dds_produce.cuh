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
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

constexpr unsigned kWarp = 0xffffffff;

/// Of a lane's line in some tile; empty where the tile reaches beyond the last line.
struct Bounds {
  std::int32_t begin = 0, end = 0;
};

template <class T>
__device__ __forceinline__ Bounds fetch_bounds(const Params& params, unsigned tile) {
  Bounds bounds;
  if (tile >= params.tiles) return bounds;
  const std::int32_t line = (place_of<T>(params, tile).output >> params.line_log2) + threadIdx.x % 32 / T::kGroup;
  if (line < params.lines) {
    bounds.begin = __ldg(params.list_begin + line);
    bounds.end = __ldg(params.list_begin + line + 1);
  }
  return bounds;
}

/// One entry of a list: the block's place along the reduction, and of its values. Forward: the values lie in list order.
struct Entry {
  std::int32_t along = 0, slot = 0;
};

template <class T>
__device__ __forceinline__ Entry fetch_entry(const Params& params, std::int32_t i, std::int32_t end) {
  Entry entry;
  if (i < end) {
    entry.along = __ldg(params.along + i);
    if constexpr (T::kIsDx) entry.slot = __ldg(params.slot + i);
  }
  return entry;
}

/// A lane's view of its line: equal in all lanes of a group but for the entries, of which each holds every kGroup-th.
struct Cursor {
  std::int32_t position, end;  // next entry of the list
  std::int32_t window;         // position of the group's first lane in `now`; `next` follows it
  Entry now, next;
  int half = 0;  // of a block of side 128: which half is next
};

/// What one step copies of a lane's line.
struct Step {
  std::uint32_t record;   // the whole tile's
  std::int32_t slab;      // position along the reduction / 64
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

  // Blocks of side 128 are two slabs, of side 64 one, of side 32 half of one.
  const int halves_log2 = params.side_log2 - 6;
  const std::int32_t own = T::kParts == 2 ? along >> 1 : (along << halves_log2) + cursor.half;
  constexpr unsigned kNone = 0x7fffffff;
  unsigned slab = more ? static_cast<unsigned>(own) : kNone;
  if constexpr (T::kLines > 1) slab = __reduce_min_sync(kWarp, slab);
  const bool hit = more && static_cast<unsigned>(own) == slab, leader = lane == group;

  Step step;
  step.slab = static_cast<std::int32_t>(slab);
  step.column = cursor.half * kSlab;
  step.block[0] = step.block[1] = block;
  int taken;  // entries
  if constexpr (T::kParts == 2) {
    // Side 32: the entry behind may be the other half of this slab. It may lie in the window after this one.
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
    taken = (cursor.half + 1) >> halves_log2;
  }

  if (hit) {
    cursor.position += taken;
    if constexpr (T::kParts == 1) cursor.half = taken ? 0 : 1;
    if (cursor.position - cursor.window >= T::kGroup) {
      cursor.window += T::kGroup;
      cursor.now = cursor.next;
      cursor.next = fetch_entry<T>(params, cursor.window + T::kGroup + lane - group, cursor.end);
    }
  }
  if (!__any_sync(kWarp, cursor.position < cursor.end)) step.record |= T::kLast;
  return step;
}

/// Starts the copies of a step into its stage, which is free. A tile without any block is one empty record.
template <class T>
__device__ __forceinline__ void start_copies(const Params& params, const Step& step, const Place& place, std::uint32_t stage,
                                             std::uint32_t full, std::uint32_t* record) {
  // By one lane: its coordinates and the others' are gathered first.
  std::int32_t row[T::kLines][T::kParts];
#pragma unroll
  for (int line = 0; line < T::kLines; ++line) {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) row[line][part] = __shfl_sync(kWarp, step.block[part], line * T::kGroup);
  }
  const int column = T::kLines == 1 ? step.column : __shfl_sync(kWarp, step.column, (__ffs(step.record & ~T::kLast) - 1) & 31);
  if (!ptx::elect_lane()) return;
  *record = step.record;

  const std::uint32_t parts = step.record & ~T::kLast;
  if (parts == 0) {
    ptx::mbarrier_arrive(full);
    return;
  }
  ptx::mbarrier_arrive_expect_tx(full, T::kXBytes + __popc(parts) * T::kPartBytes);
  ptx::tma_load_2d(stage, &params.x, step.slab * kSlab, place.token, full);
  const std::int32_t output = place.output & ((1 << params.line_log2) - 1);  // within a line that is wider than the tile
#pragma unroll
  for (int line = 0; line < T::kLines; ++line) {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      if ((parts & T::present(line, part)) == 0) continue;
      const std::uint32_t to = stage + T::kXBytes + (line * T::kParts + part) * T::kPartBytes;
#pragma unroll
      for (int box = 0; box < T::kBoxes; ++box) {
        if constexpr (T::kIsDx) {
          ptx::tma_load_2d(to + box * T::kBoxBytes, &params.values, output + box * T::kBoxColumns,
                           (row[line][part] << params.side_log2) + column, full);
        } else {
          ptx::tma_load_2d(to, &params.values, column, (row[line][part] << params.line_log2) + output, full);
        }
      }
    }
  }
}

/// One warp.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedStorage<T>& shared) {
  const int within = threadIdx.x % T::kGroup;
  const std::uint32_t ring = ptx::shared_address(shared.ring), full = ptx::shared_address(shared.full),
                      empty = ptx::shared_address(shared.empty);
  Bounds bounds = fetch_bounds<T>(params, blockIdx.x);
  Entry first = fetch_entry<T>(params, bounds.begin + within, bounds.end);
  Bounds bounds_after = fetch_bounds<T>(params, blockIdx.x + gridDim.x);
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const Place place = place_of<T>(params, tile);
    Cursor cursor{bounds.begin, bounds.end, bounds.begin, first};
    cursor.next = fetch_entry<T>(params, cursor.window + T::kGroup + within, cursor.end);
    bounds = bounds_after;
    first = fetch_entry<T>(params, bounds.begin + within, bounds.end);
    bounds_after = fetch_bounds<T>(params, tile + 2 * gridDim.x);

    bool last = false;
    while (!last) {
      const Step step = next_step<T>(params, cursor);
      last = step.record & T::kLast;
      const unsigned stage = turn % T::kStages, parity = turn / T::kStages % 2;
      ++turn;
      ptx::mbarrier_wait(empty + stage * 8, parity ^ 1);
      start_copies<T>(params, step, place, ring + stage * T::kStageBytes, full + stage * 8, &shared.record[stage]);
      __syncwarp();
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
