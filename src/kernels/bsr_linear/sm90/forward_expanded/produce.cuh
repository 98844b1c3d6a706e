// The warps of forward_expanded that fill the ring. Each has a group of 64 outputs, of which it expands the
// blocks in the K tile; the first also starts the copies of X.
//
//   cells   the places for blocks of a group in a K tile: for blocks of 16, 4 block rows x 4 columns
//   masks   a bit for each cell of each K tile of a part, made from the lists of the group's block rows
//
// Lists ascend, so the place of a block among the values is the number of bits before it in its block row.
#pragma once

#include "kernels/bsr_linear/sm90/forward_expanded/cut.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::expanded {

/// A group's blocks in one K tile, as the warp's lanes hold them: cells lane and lane + 32.
struct Cells {
  std::int32_t id[2];    // of the cell's block among the values; -1: none, or no such cell
  std::uint32_t slices;  // a bit for each slice that holds anything
};

template <class C>
class Group {
 public:
  __device__ __forceinline__ Group(const Params& params, Shared<C>& shared, int group)
      : params_(params),
        shared_(shared),
        group_(group),
        lane_(threadIdx.x % 32),
        rows_log2_(6 - params.side_log2),
        columns_log2_(6 - params.k_side_log2) {}

  /// Makes the masks of a part.
  __device__ __forceinline__ void enter(const Part& part) {
    auto& masks = shared_.masks[group_];
    auto& starts = shared_.starts[group_];
    for (int k_tile = part.first + lane_; k_tile < part.end; k_tile += 32)
      masks[k_tile][0] = masks[k_tile][1] = 0;
    // Where the lists begin; a lane that has no block row has the end.
    const int rows = 1 << rows_log2_;
    const int row = ((part.tile * kGroups + group_) << rows_log2_) + min(lane_, rows);
    const std::int32_t begin = ptx::ld_global(params_.list_begin + min(row, params_.block_rows));
    if (lane_ < kGroup / 8) starts[lane_] = begin;
    const std::int32_t first = __shfl_sync(~0u, begin, 0), end = __shfl_sync(~0u, begin, rows);
    __syncwarp();
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (std::int32_t from = first; from < end; from += kAtOnce * 32) {
      std::int32_t along[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int32_t at = from + i * 32 + lane_;
        along[i] = ptx::ld_global_if(at < end, params_.along + at);
        if constexpr (C::kDx)
          if (at < end && lane_ == 0) ptx::prefetch_line_l2(params_.slot + at);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int32_t at = from + i * 32 + lane_;
        int of_row = 0;
#pragma unroll
        for (int r = 1; r < kGroup / 8; ++r) of_row += at >= __shfl_sync(~0u, begin, r);
        const int k_tile = along[i] >> columns_log2_;
        if (at >= end || k_tile >= part.end) continue;
        if (k_tile < part.first) {
          atomicAdd(&starts[of_row], 1);
        } else {
          const int cell = (of_row << columns_log2_) + (along[i] & ((1 << columns_log2_) - 1));
          atomicOr(&masks[k_tile][cell / 32], 1u << cell % 32);
        }
      }
      __syncwarp();
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) next_[half] = starts[row_of(half) % (kGroup / 8)];
  }

  /// The cells of the next K tile. K tiles are taken one after the other from the part's first.
  __device__ __forceinline__ Cells take(int k_tile) {
    const std::uint32_t low = shared_.masks[group_][k_tile][0], high = shared_.masks[group_][k_tile][1];
    Cells cells{{-1, -1}, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && rows_log2_ + columns_log2_ < 6) break;
      const int column = lane_ & ((1 << columns_log2_) - 1), first = lane_ - column;
      const std::uint32_t word = half == 0 ? low : high,
                          row = (word >> first) & ((1u << (1 << columns_log2_)) - 1);
      if (row >> column & 1) {
        const std::int32_t at = next_[half] + __popc(row & ((1u << column) - 1));
        cells.id[half] = C::kDx ? ptx::ld_global(params_.slot + at) : at;
        // The slices of the column: half of one, one, two or all four.
        const int from = (column << params_.k_side_log2) / 16,
                  count = max((1 << params_.k_side_log2) / 16, 1);
        cells.slices |= ((1u << count) - 1) << from;
      }
      next_[half] += __popc(row);
    }
    cells.slices = __reduce_or_sync(~0u, cells.slices);
    return cells;
  }

  /// Copies the blocks of the cells into a stage's W, with zeros where a slice has none, and arrives.
  __device__ __forceinline__ void copy(const Cells& cells, int stage, std::uint32_t w, std::uint32_t full) {
    auto& ids = shared_.ids[group_];
    __syncwarp();  // the ids of the K tile before have been read
    ids[lane_] = cells.id[0];
    ids[lane_ + 32] = cells.id[1];
    if (lane_ == 0) shared_.records[stage][group_] = static_cast<std::uint8_t>(cells.slices);
    __syncwarp();
    // A lane's piece of a slot: 8 elements in row lane / 2, of 16, of the block's [rows][columns].
    const int row = lane_ / 2, column = lane_ % 2 * 8;
    const std::uint32_t to = w + group_ * kGroupBytes + row * 32 + ((lane_ % 2) ^ (row / 4 % 2)) * 16;
    const int side_mask = (1 << params_.side_log2) - 1, k_mask = (1 << params_.k_side_log2) - 1;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if ((cells.slices >> slice & 1) == 0) continue;
      const int k = slice * 16 + (C::kDx ? row : column);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int output = slot * 16 + (C::kDx ? column : row);
        const std::int32_t id =
            ids[((output >> params_.side_log2) << columns_log2_) + (k >> params_.k_side_log2)];
        const int within = C::kDx ? ((k & k_mask) << params_.side_log2) + (output & side_mask)
                                  : ((output & side_mask) << params_.k_side_log2) + (k & k_mask);
        const std::int64_t piece =
            (static_cast<std::int64_t>(max(id, 0)) << (params_.side_log2 + params_.k_side_log2 - 3)) +
            within / 8;
        ptx::cp_async_cg(to + slice * kSliceBytes + slot * kSlotBytes, params_.values + piece,
                         id >= 0 ? 16 : 0);
      }
    }
    ptx::mbarrier_arrive_behind_copies(full);
    if (lane_ == 0) ptx::mbarrier_arrive(full);  // for the record
  }

 private:
  __device__ __forceinline__ int row_of(int half) const { return (lane_ + half * 32) >> columns_log2_; }

  const Params& params_;
  Shared<C>& shared_;
  const int group_, lane_, rows_log2_, columns_log2_;
  std::int32_t next_[2];  // position in the list of the next block of the cells' block rows
};

template <class C>
__device__ __forceinline__ void produce(const Params& params, const Cut& cut, int share, Shared<C>& shared,
                                        int group) {
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const int first_token = static_cast<int>(blockIdx.y) * params.tile_tokens;
  Group<C> own(params, shared, group);
  unsigned turn = 0;
  for_each_part(cut, share, [&](const Part& part) {
    own.enter(part);
    Cells next = own.take(part.first);
#pragma unroll 1
    for (int k_tile = part.first; k_tile < part.end; ++k_tile, ++turn) {
      const Cells cells = next;
      if (k_tile + 1 < part.end) next = own.take(k_tile + 1);
      const StageOf<C::kStages> stage(turn);
      const std::uint32_t at = ring + stage.index * C::kStageBytes, full = pipeline.full(stage.index);
      pipeline.acquire(stage.index, stage.parity ^ 1);
      if (group == 0 && ptx::elect_lane()) {
        Pipeline::expect(full, params.tile_tokens * (kKTile * 2));
        ptx::tma_load_2d(at, &params.x, k_tile * kKTile, first_token, full);
      }
      own.copy(cells, stage.index, at + C::kXBytes, full);
    }
  });
}

}  // namespace sparseloom::kernels::cuda::expanded
