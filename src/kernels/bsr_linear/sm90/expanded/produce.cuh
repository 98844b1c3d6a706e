// The warps of sm90_expanded that fill the ring. Each expands the blocks of one group of 64 outputs in the K
// tile; the first also starts the copies of X.
//
//   cells   the block positions of a group in a K tile: for blocks of 16, 4 block rows x 4 columns
//   masks   a bit for each cell of each K tile of a segment, made from the lists of the group's block rows
//
// Lists ascend, so a block's index in the list is the number of bits before it in its block row.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/cut.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::expanded {

/// A group's blocks in one K tile, distributed over the warp's lanes: entries lane and lane + 32 (Group).
struct Cells {
  std::int32_t block[2];  // block of each entry in values; -1: zeros
  std::uint32_t slices;   // a bit for each nonempty slice
};

/// An entry is one stored block or, where blocks have a side of 8, one half or quarter of a 16 x 16 slot: the
/// entries of the first quarters of all slots come first, then those of the second quarters, and so on.
template <class C>
class Group {
 public:
  __device__ __forceinline__ Group(const Params& params, Shared<C>& shared, int group)
      : params_(params),
        shared_(shared),
        group_(group),
        lane_(threadIdx.x % 32),
        rows_log2_(6 - params.side_log2),
        columns_log2_(6 - params.k_side_log2),
        block_log2_(params.side_log2 + params.k_side_log2 - 3) {
    const bool halves = params.side_log2 == 3, k_halves = params.k_side_log2 == 3;
    quarters_ = (halves ? 2 : 1) * (k_halves ? 2 : 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int entry = lane_ + i * 32, quarter = entry / 16, slice = entry / kSlots % kSlices;
      const int output = entry % kSlots * 16 + (halves && quarter % 2 ? 8 : 0),
                k = slice * 16 + ((halves ? quarter / 2 : quarter) % 2 ? 8 : 0);
      const int row = output >> params.side_log2, column = k >> params.k_side_log2;
      entries_[i] = {quarter < quarters_, row,         row << columns_log2_,
                     (1u << column) - 1,  1u << slice, within(output, k)};
    }
    // A lane copies 8 elements in row lane / 2, of 16, of every slot: the blocks' layout is [rows][columns].
    const int row = lane_ / 2, column = lane_ % 2 * 8;
    const int output = C::kDx ? column : row, k = C::kDx ? row : column;
    const int quarter = (halves ? output / 8 : 0) + (k_halves ? (halves ? 2 : 1) * (k / 8) : 0);
    lane_vectors_ = reinterpret_cast<const int4*>(shared.vectors[group] + quarter * (kSlices * kSlots));
    lane_values_ = reinterpret_cast<const char*>(params.values + within(output, k));
    ptx::opaque(lane_values_);  // an address then takes one instruction
    lane_offset_ = group * kGroupBytes + row * 32 + ((lane_ % 2) ^ (row / 4 % 2)) * 16;
  }

  /// Builds the masks of a segment.
  __device__ __forceinline__ void enter(const Cut::Segment& segment) {
    auto& masks = shared_.masks[group_];
    auto& starts = shared_.starts[group_];
    for (int k_tile = segment.first + lane_; k_tile < segment.end; k_tile += 32)
      masks[k_tile][0] = masks[k_tile][1] = 0;
    // The starts of the lists; a lane past the block rows has the end.
    const int rows = 1 << rows_log2_;
    const int row = ((segment.tile * kGroups + group_) << rows_log2_) + min(lane_, rows);
    const std::int32_t begin = ptx::ld_global(params_.list_begin + min(row, params_.block_rows));
    const std::int32_t start = segment.first == 0 ? begin : skip(begin, segment.first);
    if (lane_ < kGroup / 8) starts[lane_] = start;
    __syncwarp();
    // Eight loads at a time: from 8 block rows, or twice from 4 of them, ..
    constexpr int kAtOnce = 8;
    const int last = (kAtOnce >> rows_log2_) - 1;
    bool more = true;
#pragma unroll 1
    for (int from = lane_; more; from += (last + 1) * 32) {
      std::int32_t along[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int of_row = i & (rows - 1);
        const std::int32_t at = __shfl_sync(~0u, start, of_row) + from + (i >> rows_log2_) * 32;
        const bool exists = at < __shfl_sync(~0u, begin, of_row + 1);
        along[i] = ptx::ld_global_if(exists, params_.along + at);
        if (!exists) along[i] = kNone;
        if constexpr (C::kDx)
          if (exists && lane_ == 0) ptx::prefetch_line_l2(params_.slot + at);
      }
      bool goes_on = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int of_row = i & (rows - 1), k_tile = along[i] >> columns_log2_;
        const int cell = (of_row << columns_log2_) + (along[i] & ((1 << columns_log2_) - 1));
        if (k_tile >= segment.first && k_tile < segment.end)
          atomicOr(&masks[k_tile][cell / 32], 1u << cell % 32);
        goes_on = goes_on || ((i >> rows_log2_) == last && k_tile < segment.end);
        if (segment.first > 0) {
          const int before = __popc(__ballot_sync(~0u, k_tile < segment.first));
          if (lane_ == 0) starts[of_row] += before;
        }
      }
      // Lists ascend: a block row continues if its last entry read exists and lies before the segment's end.
      more = __any_sync(~0u, lane_ == 31 && goes_on);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) next_[i] = starts[entries_[i].row];
  }

  /// Returns the entries of the next K tile. K tiles are taken in order, from the segment's first.
  __device__ __forceinline__ Cells take(int k_tile) {
    const std::uint32_t* const masks = shared_.masks[group_][k_tile];
    Cells cells{{-1, -1}, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && quarters_ < 4) break;
      const Entry& entry = entries_[i];
      const std::uint32_t row =
          (masks[entry.first_cell / 32] >> entry.first_cell % 32) & ((1u << (1 << columns_log2_)) - 1);
      if (entry.exists && (row & (entry.before + 1)) != 0) {
        const std::int32_t at = next_[i] + __popc(row & entry.before);
        cells.block[i] = C::kDx ? ptx::ld_global(params_.slot + at) : at;
        cells.slices |= entry.slice;
      }
      next_[i] += __popc(row);
    }
    cells.slices = __reduce_or_sync(~0u, cells.slices);
    return cells;
  }

  /// The vector that a lane copies into each slot; -1: zeros.
  struct Vectors {
    int4 of_slice[kSlices];
    std::uint32_t slices;
  };
  __device__ __forceinline__ Vectors vectors_of(const Cells& cells) {
    auto& vectors = shared_.vectors[group_];
    const auto vector = [&](int i) {
      return cells.block[i] < 0 ? -1 : (cells.block[i] << block_log2_) + entries_[i].within;
    };
    __syncwarp();  // the previous K tile's vectors have been read
    vectors[lane_] = vector(0);
    if (quarters_ == 4) vectors[lane_ + 32] = vector(1);
    __syncwarp();
    Vectors result;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) result.of_slice[slice] = lane_vectors_[slice];
    result.slices = cells.slices;
    return result;
  }

  /// Copies the vectors into a stage's W, with zeros between them in nonempty slices, and arrives.
  __device__ __forceinline__ void copy(const Vectors& vectors, int stage, std::uint32_t w,
                                       std::uint32_t full) {
    if (lane_ == 0) shared_.records[stage][group_] = static_cast<std::uint8_t>(vectors.slices);
    static_assert(kSlots == 4);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if ((vectors.slices >> slice & 1) == 0) continue;
      const int4 vector4 = vectors.of_slice[slice];
      const int vector[kSlots] = {vector4.x, vector4.y, vector4.z, vector4.w};
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot)
        ptx::cp_async_cg_or_zero(
            w + lane_offset_ + slice * kSliceBytes + slot * kSlotBytes,
            lane_values_ + std::size_t{16} * static_cast<std::uint32_t>(max(vector[slot], 0)),
            vector[slot] < 0);
    }
    ptx::mbarrier_arrive_behind_copies(full);
    if (lane_ == 0) ptx::mbarrier_arrive(full);  // for the record
  }

 private:
  static constexpr std::int32_t kNone = 1 << 30;  // past every position

  /// Returns, in each lane that has a block row, a lower bound of the position of the first entry in K tile
  /// k_tile, at most 1/32 of the list too early.
  __device__ __forceinline__ std::int32_t skip(std::int32_t begin, int k_tile) const {
    constexpr int kMostRows = kGroup / 8;
    std::int32_t along[kMostRows];
#pragma unroll
    for (int row = 0; row < kMostRows; ++row) {
      along[row] = kNone;
      if (row >= 1 << rows_log2_) continue;
      const std::int32_t first = __shfl_sync(~0u, begin, row),
                         count = __shfl_sync(~0u, begin, row + 1) - first;
      if (count > 0) along[row] = ptx::ld_global(params_.along + first + count * lane_ / 32);
    }
    std::int32_t start = begin;
#pragma unroll
    for (int row = 0; row < kMostRows; ++row) {
      const int probes = __popc(__ballot_sync(~0u, along[row] >> columns_log2_ < k_tile));
      const std::int32_t count = __shfl_sync(~0u, begin, row + 1) - __shfl_sync(~0u, begin, row);
      if (lane_ == row) start += count * max(probes - 1, 0) / 32;
    }
    return start;
  }

  struct Entry {
    bool exists;
    int row, first_cell;   // block row within the group, and its first cell
    std::uint32_t before;  // the cells of the block row before this one; this one is the next bit
    std::uint32_t slice;   // a bit
    int within;            // 8-element vectors before the entry's
  };
  /// Returns how many 8-element vectors of the block precede an element.
  __device__ __forceinline__ int within(int output, int k) const {
    const int in_side = output & ((1 << params_.side_log2) - 1), in_k = k & ((1 << params_.k_side_log2) - 1);
    return (C::kDx ? (in_k << params_.side_log2) + in_side : (in_side << params_.k_side_log2) + in_k) / 8;
  }

  const Params& params_;
  Shared<C>& shared_;
  const int group_, lane_, rows_log2_, columns_log2_, block_log2_;
  int quarters_;
  Entry entries_[2];
  std::int32_t next_[2];  // list position of the next block of each entry's block row
  const int4* lane_vectors_;
  const char* lane_values_;
  std::uint32_t lane_offset_;
};

template <class C>
__device__ __forceinline__ void produce(const Params& params, const Cut& cut, int share, Shared<C>& shared,
                                        int group) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const int first_token = static_cast<int>(blockIdx.y) * params.tile_tokens;
  Group<C> own(params, shared, group);
  unsigned turn = 0;
  cut.for_each_segment(share, [&](const Cut::Segment& segment) {
    own.enter(segment);
    Cells next = own.take(segment.first);
#pragma unroll 1
    for (int k_tile = segment.first; k_tile < segment.end; ++k_tile, ++turn) {
      const auto vectors = own.vectors_of(next);
      if (k_tile + 1 < segment.end) next = own.take(k_tile + 1);
      const StageOf<C::kStages> stage(turn);
      const std::uint32_t at = ring + stage.index * C::kStageBytes, full = pipeline.full(stage.index);
      pipeline.acquire(stage.index, stage.parity ^ 1);
      if (group == 0 && ptx::elect_lane()) {
        Pipeline::expect(full, params.tile_tokens * (kKTile * 2));
        ptx::tma_load_2d(at, &params.x, k_tile * kKTile, first_token, full);
      }
      own.copy(vectors, stage.index, at + C::kXBytes, full);
    }
  });
}

}  // namespace sparseloom::kernels::cuda::expanded
