// dW in fp32 by FFMA: out[i][r, c] = sum over tokens t of dY[t, row bm + r] X[t, col[i] bn + c], for the
// stored blocks i.
//
// A thread block computes one work item: up to 128 / bn consecutive blocks of one block row (64 rows of them
// at a time), over one segment of the tokens (a piece). It gathers their columns of X side by side and walks
// down the tokens in steps of kTokens:
//
//        dY   [##]          X   . [##] . [##][##] .
//        [t]  [##]              . [##] . [##][##] .      -> ring of kStages steps -> registers -> FFMA
//             rows                columns of blocks i, i + 1, i + 2
//
// Both operands have the matrices' layout in shared memory, one token per row, so the outer product of a
// token reads four neighbouring rows or columns at a time without bank conflicts. Every thread sums its
// results over the segment in registers, in token order; sum_pieces adds the segments.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/ffma/dw.h"
#include "kernels/bsr_linear/sm80/ffma/ffma.cuh"
#include "kernels/bsr_linear/sm80/mma/dw/item.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::ffma {

/// kWarpsM x 2 warps of kLanesM x (32 / kLanesM) lanes; each warp has 64 columns.
template <int kWarpsM, int kLanesM_, int kRowsPerThread_, int kBlocksPerSm_>
struct DwConfig {
  static constexpr int kWarpsN = 2, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kLanesM = kLanesM_, kLanesN = 32 / kLanesM_;
  static constexpr int kRowsPerThread = kRowsPerThread_, kColumnsPerThread = 64 / kLanesN;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // thread blocks; bounds the registers
  static constexpr int kWarpRows = kLanesM * kRowsPerThread, kWarpColumns = kLanesN * kColumnsPerThread;
  static constexpr int kRows = kWarpsM * kWarpRows, kColumns = kWarpsN * kWarpColumns;
  static constexpr int kRowGroups = kRowsPerThread / kChunk,
                       kColumnGroups = kColumnsPerThread / kChunk;  // of four neighbours
  static constexpr int kTokens = 16;
  // A step of 1000 issue slots may take less time than a DRAM load if few thread blocks share the
  // multiprocessor.
  static constexpr int kStages = 3;
  static constexpr int kDyFloats = kTokens * kRows, kStageFloats = kDyFloats + kTokens * kColumns;
  static constexpr int kSharedBytes = kStages * kStageFloats * static_cast<int>(sizeof(float));
  static_assert(kColumns == kDwColumns, "the launcher counts items of this width");
  static_assert(kRowsPerThread % kChunk == 0, "a thread reads four neighbouring rows at once");
};

using Dw64 = DwConfig<2, 4, 8, 3>;  // 64 x 128, 128 threads
using Dw32 = DwConfig<1, 4, 8, 6>;  // 32 x 128, 64 threads
using Dw16 = DwConfig<1, 2, 8, 8>;  // 16 x 128
using Dw8 = DwConfig<1, 2, 4, 8>;   //  8 x 128

/// The work of a thread block.
struct DwWork {
  mma::dw::Item item;
  int part;                             // rows part * kRows .. of each block of the block row
  std::int64_t first_token, end_token;  // equal for a segment past the end
};

/// A thread's copies of one operand: a fixed chunk of columns, of every kPassRows-th token of a step.
template <class C, int kWidth>
struct DwColumn {
  static constexpr int kRowChunks = kWidth / kChunk;
  static constexpr int kPassRows = C::kThreads / kRowChunks;
  static constexpr int kPasses = C::kTokens > kPassRows ? C::kTokens / kPassRows : 1;
  static_assert(C::kTokens % kPassRows == 0 || kPassRows > C::kTokens, "whole passes");
  const float* source;  // this thread's chunk of the next step
  int floats;           // floats of the chunk that exist

  static __device__ __forceinline__ int column() { return threadIdx.x % kRowChunks * kChunk; }
  static __device__ __forceinline__ int token() { return threadIdx.x / kRowChunks; }

  /// `first`: the matrix column of this thread's chunk; nothing is read at or after `columns`.
  __device__ __forceinline__ DwColumn(const void* matrix, std::int64_t stride, std::int64_t first,
                                      std::int64_t columns, std::int64_t first_token)
      : source(static_cast<const float*>(matrix) + (first_token + token()) * stride + first),
        floats(chunk_floats(first, columns)) {}

  /// Queues the copies of a step, of which `tokens` exist, into a tile of kTokens x kWidth. A chunk of absent
  /// columns keeps the tile's old content: sums of different columns never mix, and those of absent ones are
  /// not stored.
  __device__ __forceinline__ void load(std::uint32_t tile, int tokens, const void* matrix,
                                       std::int64_t stride, bool aligned) {
    if (floats == 0 || (kPassRows > C::kTokens && token() >= C::kTokens)) return;
    copy_column<kPasses, kPassRows, C::kThreads * 16>(tile + threadIdx.x * 16, source, kPassRows * stride,
                                                      floats, tokens - token(), aligned,
                                                      static_cast<const float*>(matrix));
    source += C::kTokens * stride;
  }
};

template <class C>
using DwSums = float[C::kRowsPerThread][C::kColumnsPerThread];

/// sums += the products of one step, for the first kGroups groups of the thread's columns.
template <class C, int kGroups>
__device__ __forceinline__ void multiply_tokens(DwSums<C>& sums, const float* dy, const float* x) {
#pragma unroll 4
  for (int t = 0; t < C::kTokens; ++t) {
    float rows[C::kRowsPerThread], columns[kGroups * kChunk];
#pragma unroll
    for (int g = 0; g < C::kRowGroups; ++g)
      *reinterpret_cast<float4*>(&rows[g * kChunk]) = load_chunk(dy + t * C::kRows + g * C::kLanesM * kChunk);
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      *reinterpret_cast<float4*>(&columns[g * kChunk]) =
          load_chunk(x + t * C::kColumns + g * C::kLanesN * kChunk);
#pragma unroll
    for (int i = 0; i < C::kRowsPerThread; ++i)
#pragma unroll
      for (int j = 0; j < kGroups * kChunk; ++j) sums[i][j] = fmaf(rows[i], columns[j], sums[i][j]);
  }
}

/// Position of the thread's sums in the item: rows first_row + g 4 kLanesM + (0 .. 3), columns first_column +
/// g 4 kLanesN + (0 .. 3).
template <class C>
struct DwPlace {
  int warp_column, first_row, first_column;
  __device__ __forceinline__ DwPlace() {
    static_assert(C::kLanesM < C::kLanesN, "columns are the wide side of every configuration");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    warp_column = warp % C::kWarpsN * C::kWarpColumns;
    first_row = warp / C::kWarpsN * C::kWarpRows + Lanes<C::kLanesM>::narrow(lane) * kChunk;
    first_column = warp_column + Lanes<C::kLanesM>::wide(lane) * kChunk;
  }
};

/// Stores the sums of an item. Blocks are contiguous, so a sum's address follows from its block and its
/// position in it. Padding is written as zero, or gets zero added: its sum is zero times X, which is NaN if X
/// is infinite.
template <class C>
__device__ __forceinline__ void store_item(const DwParams& p, const DwWork& work, const DwSums<C>& sums,
                                           const DwPlace<C>& place) {
  float* out = p.partial ? p.partial + blockIdx.y * p.elements : static_cast<float*>(p.out);
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 16 == 0;  // blocks are whole chunks
  const bool adds = p.accumulate && p.partial == nullptr;
  const int bn = 1 << p.log2_bn;
#pragma unroll
  for (int h = 0; h < C::kColumnGroups; ++h) {
    const int n = place.first_column + h * C::kLanesN * kChunk;
    if (n >> p.log2_bn >= work.item.blocks) continue;
    const std::int64_t block = work.item.first + (n >> p.log2_bn);
    const int c = n & (bn - 1);
    const int columns = chunk_floats((std::int64_t{p.col[block]} << p.log2_bn) + c, p.cols);
    const auto row = [&](int i) {
      return work.part * C::kRows + place.first_row + i / kChunk * C::kLanesM * kChunk + i % kChunk;
    };
    float* const corner = out + block * p.bm * bn + c;
    float4 v[C::kRowsPerThread];
#pragma unroll
    for (int i = 0; i < C::kRowsPerThread; ++i) {
      const int exist = work.item.row * p.bm + row(i) < p.rows ? columns : 0;
      const float* s = &sums[i][h * kChunk];
      v[i] =
          make_float4(exist > 0 ? s[0] : 0, exist > 1 ? s[1] : 0, exist > 2 ? s[2] : 0, exist > 3 ? s[3] : 0);
    }
    if (adds) {  // all loads before the first store
#pragma unroll
      for (int i = 0; i < C::kRowsPerThread; ++i) add_chunk(v[i], corner + row(i) * bn, aligned);
    }
#pragma unroll
    for (int i = 0; i < C::kRowsPerThread; ++i) store_chunk(corner + row(i) * bn, v[i], kChunk, aligned);
  }
}

/// Work item and segment of this thread block; item.blocks is 0 if there is nothing to do.
template <class C>
__device__ __forceinline__ DwWork dw_work(const DwParams& p) {
  const int parts = p.bm / C::kRows;
  DwWork work;
  work.item = mma::dw::find_item(p, blockIdx.x / parts, threadIdx.x % 32);
  work.part = blockIdx.x % parts;
  work.first_token = min(p.m, blockIdx.y * p.piece_tokens);
  work.end_token = min(p.m, work.first_token + p.piece_tokens);
  return work;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    ffma_dw_kernel(const __grid_constant__ DwParams p) {
  extern __shared__ __align__(16) float ring[];
  const DwWork work = dw_work<C>(p);
  if (work.item.blocks == 0) return;
  using DyColumn = DwColumn<C, C::kRows>;
  using XColumn = DwColumn<C, C::kColumns>;
  const int x_column = XColumn::column(), x_block = x_column >> p.log2_bn;
  // Columns past the item's last block read nothing and are not stored.
  const std::int64_t x_first = x_block < work.item.blocks
                                   ? (std::int64_t{p.col[work.item.first + x_block]} << p.log2_bn) +
                                         (x_column & ((1 << p.log2_bn) - 1))
                                   : p.cols;
  const std::int64_t dy_first = work.item.row * p.bm + work.part * C::kRows + DyColumn::column();
  DyColumn dy(p.dy, p.dy_stride, dy_first, p.rows, work.first_token);
  XColumn x(p.x, p.x_stride, x_first, p.cols, work.first_token);
  const DwPlace<C> place;
  DwSums<C> sums = {};

  const std::uint32_t shared = ptx::shared_address(ring);
  const int steps = static_cast<int>((work.end_token - work.first_token + C::kTokens - 1) / C::kTokens);
  const int last_tokens =
      static_cast<int>(work.end_token - work.first_token - std::int64_t{steps - 1} * C::kTokens);
  const auto load = [&](int step) {
    const std::uint32_t stage = shared + step % C::kStages * (C::kStageFloats * sizeof(float));
    const int tokens = step + 1 < steps ? C::kTokens : last_tokens;
    dy.load(stage, tokens, p.dy, p.dy_stride, p.dy_chunks);
    x.load(stage + C::kDyFloats * sizeof(float), tokens, p.x, p.x_stride, p.x_chunks);
  };
  // Prologue: fill all stages but one.
  for (int step = 0; step < C::kStages - 1; ++step) {
    if (step < steps) load(step);
    ptx::cp_async_commit();
  }
  // A warp's columns come in groups as wide as its lanes. Those without a block are skipped, uniformly in a
  // warp.
  const int columns_left = (work.item.blocks << p.log2_bn) - place.warp_column;
  for (int step = 0; step < steps; ++step) {
    // Wait for the stage. After the barrier, all threads have read the stage that is filled next.
    ptx::cp_async_wait<C::kStages - 2>();
    __syncthreads();
    // Issue the copies of a later step.
    if (step + C::kStages - 1 < steps) load(step + C::kStages - 1);
    ptx::cp_async_commit();
    // Multiply the step.
    const float* stage = ring + step % C::kStages * C::kStageFloats;
    const float* rows = stage + place.first_row;
    const float* columns = stage + C::kDyFloats + place.first_column;
    if (columns_left > (C::kColumnGroups - 1) * C::kLanesN * kChunk) {
      multiply_tokens<C, C::kColumnGroups>(sums, rows, columns);
    } else if (columns_left > 0) {
      multiply_tokens<C, 1>(sums, rows, columns);
    }
  }
  store_item<C>(p, work, sums, place);
}

}  // namespace sparseloom::kernels::cuda::ffma
