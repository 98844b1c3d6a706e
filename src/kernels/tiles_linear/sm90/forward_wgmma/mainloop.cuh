// Both sides of the ring: the producers' copies, and the consumers' products of a tile. The producers pass
// over K tiles without a stored unit, and say in a stage which units it holds and whether another follows.
// Rejected: consumers that read the table too, and stages of as many slots of 4096 bytes as the units need,
// for which one warp has to copy all of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma_rs.cuh"
#include "kernels/tiles_linear/sm90/forward_wgmma/tile.cuh"
#include "sparseloom/tiles.h"

namespace sparseloom::kernels::cuda::tiles {

// What an entry says, as TilesView's functions of these names, which the device cannot call.
__device__ __forceinline__ bool is_half(std::int32_t entry) { return (entry & 1) != 0; }
__device__ __forceinline__ std::int32_t column_part(std::int32_t entry) { return entry >> 1 & 1; }
__device__ __forceinline__ std::int32_t first_row(std::int32_t entry) { return (entry >> 2) * 64; }

/// The entries of 32 K tiles from `first` on, one in each lane: of the warp's own unit, and which K tiles
/// store any unit of the tile (TilesView::table). An entry outside of the values counts as absent, since
/// nothing on a GPU has checked the table.
template <class T>
struct Batch {
  std::int32_t own = -1;
  unsigned stored;

  __device__ __forceinline__ Batch(const Params& params, std::int32_t row, int unit, std::int32_t first,
                                   std::int32_t end) {
    const std::int32_t k = first + static_cast<std::int32_t>(threadIdx.x % 32);
    bool any = false;
    if (k < end) {
      const std::int32_t* const at =
          params.table +
          (std::int64_t{row / TilesView::kGroupRows} * params.product.k_tiles + k) * TilesView::kGroup +
          row % TilesView::kGroupRows / 64;
      std::int32_t entries[T::kUnits];
      if constexpr (T::kUnits == 4) {
        const int4 loaded = __ldg(reinterpret_cast<const int4*>(at));
        entries[0] = loaded.x, entries[1] = loaded.y, entries[2] = loaded.z, entries[3] = loaded.w;
      } else if constexpr (T::kUnits == 2) {
        const int2 loaded = __ldg(reinterpret_cast<const int2*>(at));
        entries[0] = loaded.x, entries[1] = loaded.y;
      } else {
        entries[0] = __ldg(at);
      }
#pragma unroll
      for (int i = 0; i < T::kUnits; ++i) {
        const bool exists = entries[i] >= 0 && entries[i] >> 2 < params.units[is_half(entries[i])];
        any = any || exists;
        if (i == unit && exists) own = entries[i];
      }
    }
    stored = __ballot_sync(0xffffffff, any);
  }
};

/// Copies a unit, if there is one, and a part of x, if the stage has any unit.
template <class T>
__device__ __forceinline__ void copy_unit(const Params& params, Rings<T>& rings, const Barriers<T>& barriers,
                                          unsigned turn, int unit, std::int32_t token, std::int32_t k,
                                          std::int32_t entry, bool any, bool last) {
  const Pipeline pipeline(barriers.full, barriers.empty);
  const StageOf<T::kStages> stage(turn);
  const std::uint32_t stage_at = ptx::shared_address(rings.stages[stage.index]),
                      full = pipeline.full(stage.index);
  const std::uint32_t to = stage_at + unit * T::kDenseBytes;
  std::uint32_t bytes = any ? T::kXPart * 128 : 0;
  if (entry >= 0) bytes += is_half(entry) ? T::kHalfBytes + T::kMetadataBytes : T::kDenseBytes;
  pipeline.acquire(stage.index, stage.parity ^ 1);
  rings.held[stage.index].unit[unit] = entry;
  if (unit == 0) rings.held[stage.index].last = last;
  Pipeline::expect(full, bytes);
  if (any)
    ptx::tma_load_2d(stage_at + T::kUnits * T::kDenseBytes + unit * (T::kXPart * 128), &params.product.x,
                     k * 64, token + unit * T::kXPart, full);
  if (entry < 0) return;
  const std::int32_t first = first_row(entry), part = column_part(entry);
  if (is_half(entry)) {
    ptx::tma_load_2d(to, &params.product.values, part * 32, first, full);
    const std::int64_t number = std::int64_t{first / 64} * params.parts + part;
    ptx::bulk_load(to + T::kHalfBytes, params.product.metadata + number * T::kMetadataBytes,
                   T::kMetadataBytes, full);
  } else {
    ptx::tma_load_2d(to, &params.dense, part * 64, first, full);
  }
}

/// Copies the warp's unit of the K tiles `begin` to `end` of a tile, at least one stage; all lanes of the
/// producer warps call it. `turn` counts stages from the kernel's start. A warp loads the entries of 32 K
/// tiles at once: one by one, their latency was the time of a stage.
template <class T>
__device__ __forceinline__ void copy_tile(const Params& params, Rings<T>& rings, const Barriers<T>& barriers,
                                          unsigned& turn, int warp, std::int32_t row, std::int32_t token,
                                          std::int32_t begin, std::int32_t end) {
  const bool elected = ptx::elect_lane();
  const int unit = warp % T::kUnits, phase = warp / T::kUnits;
  const auto leads = [&] { return elected && static_cast<int>(turn % T::kPhases) == phase; };
  std::int32_t first = begin;
  Batch<T> batch(params, row, unit, first, end);
  // The first K tiles from here on of which one stores a unit.
  const auto find = [&] {
    while (batch.stored == 0 && (first += 32) < end) batch = Batch<T>(params, row, unit, first, end);
  };
  find();
  if (batch.stored == 0) {  // one stage without a unit, for its end
    if (leads()) copy_unit<T>(params, rings, barriers, turn, unit, token, begin, -1, false, true);
    ++turn;
  }
#pragma unroll 1
  while (batch.stored != 0) {
    const int lane = __ffs(static_cast<int>(batch.stored)) - 1;
    const std::int32_t k = first + lane, entry = __shfl_sync(0xffffffff, batch.own, lane);
    batch.stored &= batch.stored - 1;
    find();
    if (leads()) copy_unit<T>(params, rings, barriers, turn, unit, token, k, entry, true, batch.stored == 0);
    ++turn;
  }
}

/// A thread's metadata of a stage: a word for each block of rows.
template <class T>
using Metadata = std::uint32_t[T::kBlocks];

/// Queues the products of the stage after `turn` others, once it has landed, and then waits for those of the
/// stage before: its registers of metadata and its slot are free. Returns whether it is the tile's last
/// stage. Every consumer thread releases a stage, since each has read what it holds.
template <class T>
__device__ __forceinline__ bool multiply_stage(semi24::Sums<T>& sums, Metadata<T>& metadata,
                                               const Metadata<T>& before, const Rings<T>& rings,
                                               const Pipeline& pipeline, int warpgroup, unsigned turn,
                                               bool first) {
  const StageOf<T::kStages> stage(turn);
  const std::uint32_t at = ptx::shared_address(rings.stages[stage.index]);
  const std::uint32_t x = ptx::wgmma_address(at + T::kUnits * T::kDenseBytes);
  pipeline.wait(stage.index, stage.parity);
  const bool last = rings.held[stage.index].last != 0;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const int number = warpgroup * T::kBlocks + block;
    const std::uint32_t unit = at + number * T::kDenseBytes, w = ptx::wgmma_address(unit);
    const std::int32_t entry = __shfl_sync(0xffffffff, rings.held[stage.index].unit[number], 0);  // uniform
    // A group on every path: with one for all blocks, ptxas ends one in each branch, too, and waits for
    // those.
    if (entry < 0) {
      ptx::wgmma_commit();
    } else if (is_half(entry)) {
      std::uint32_t word[1];
      ptx::ld_shared(word, unit + T::kHalfBytes + threadIdx.x % 128 * 4);
      metadata[block] = word[0];
      ptx::wgmma_fence();
      T::Element::template mma<0>(sums[block], T::kHalfDescriptor | w, T::kDescriptor | x, metadata[block],
                                  true);
      T::Element::template mma<1>(sums[block], T::kHalfDescriptor | (w + 2), T::kDescriptor | (x + 4),
                                  metadata[block], true);
      ptx::wgmma_commit();
    } else {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)
        T::Element::mma_dense(sums[block], T::kDescriptor | (w + 2 * step), T::kDescriptor | (x + 2 * step));
      ptx::wgmma_commit();
    }
  }
  ptx::wgmma_wait<T::kBlocks>();
  ptx::keep(before);
  if (!first) pipeline.release(StageOf<T::kStages>(turn - 1).index);
  return last;
}

/// sums = the products of a tile's K tiles.
template <class T>
__device__ __forceinline__ void multiply_stages(semi24::Sums<T>& sums, const Rings<T>& rings,
                                                const Barriers<T>& barriers, int warpgroup, unsigned& turn) {
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block)
#pragma unroll
    for (int i = 0; i < T::kTokens / 2; ++i) sums[block][i] = 0.0f;
  const Pipeline pipeline(barriers.full, barriers.empty);
  Metadata<T> even = {}, odd = {};  // two sets, because products in flight still read theirs
#pragma unroll 1
  for (bool first = true;; first = false) {
    if (multiply_stage<T>(sums, even, odd, rings, pipeline, warpgroup, turn++, first)) break;
    if (multiply_stage<T>(sums, odd, even, rings, pipeline, warpgroup, turn++, false)) break;
  }
  ptx::wgmma_wait<0>();
  ptx::keep(even);
  ptx::keep(odd);
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) ptx::pin(sums[block]);
  pipeline.release(StageOf<T::kStages>(turn - 1).index);
}

}  // namespace sparseloom::kernels::cuda::tiles
