// Rebuilds the index tables of a block mask on the device, in place of the old ones: forward's crow and col,
// dX's ccol, row and slot, and `moved`, the old slot of each block. dW walks crow and col.
//
//   mask bytes -> bits -> rank of each cell -> moved (reads the old tables) -> crow, col -> bits transposed
//   -> ccol, row, slot
//
// There is one thread block. A warp takes a word of 32 cells, and a lane one cell. Ranks are prefix sums of
// the words' population counts, so nothing depends on the order of threads, and a warp's writes are
// contiguous in both directions. Rejected: a grid of thread blocks, which has to synchronise twice per
// direction (six launches, or a cooperative one) to divide a few microseconds of work.
//
// If the mask has p cells before cell i in row-major order, min(p, capacity) + min(i - p, fill) blocks lie
// before this cell, where fill = max(capacity - cells of the mask, 0). If the mask has too many cells, the
// first ones count; if it has too few, the first other cells fill up. So exactly `capacity` blocks exist for
// every mask, and every kernel, grid and workspace of the products stays valid: dW writes each slot of its
// output because each is a block. With Params::flags, `fill` is 0 and the number of blocks is that of the
// mask.
//
// Words and their prefix sums are in shared memory if they fit (on an sm_90: grids of up to 640 x 640 cells),
// otherwise in the workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "sparseloom/layout.h"
#include "sparseloom/topology.h"

namespace sparseloom::kernels::cuda::topology {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kWarp = 0xffffffffu;

/// A bit matrix with 32 cells per word, and for each word the number of ones before it. Grids have fewer than
/// 2^28 cells, so all counts fit an int. The pitch is odd, so that a warp that reads down a column of words
/// uses 32 banks.
struct BitTable {
  std::uint32_t* words = nullptr;
  std::int32_t* before = nullptr;
  int block_rows, block_row_words;

  __host__ __device__ BitTable(int block_row_count, int cells)
      : block_rows(block_row_count), block_row_words((cells + 31) / 32) {}
  __host__ __device__ int pitch() const { return block_row_words | 1; }
  __host__ __device__ int count() const { return block_rows * block_row_words; }
  __host__ __device__ int entries() const { return block_rows * pitch(); }
  __host__ __device__ std::int64_t bytes() const { return std::int64_t{entries()} * 8; }
  __device__ void place(std::byte* memory) {
    words = reinterpret_cast<std::uint32_t*>(memory);
    before = reinterpret_cast<std::int32_t*>(words + entries());
  }
};

struct Params {
  const std::uint8_t* mask;
  TopologyTables tables;
  std::byte* scratch;  // null: use shared memory
  // Null: there are exactly tables.capacity blocks. Otherwise there are as many as in the mask, and if they
  // are too many nothing changes and kTopologyOverflow is set here (sparseloom/topology.h).
  std::int32_t* flags;
};

/// Position of word k of a table.
struct Place {
  int block_row, word;
  __device__ Place(const BitTable& table, int k)
      : block_row(k / table.block_row_words), word(k - block_row * table.block_row_words) {}
  __device__ void step(const BitTable& table) {
    if (++word == table.block_row_words) ++block_row, word = 0;
  }
  __device__ int entry(const BitTable& table) const { return block_row * table.pitch() + word; }
};

/// Number of ones of a word below a position in it.
__device__ __forceinline__ std::int32_t ones_below(std::uint32_t word, int place) {
  return __popc(word & ((1u << place) - 1u));
}

/// Number of ones of the table before a cell.
__device__ __forceinline__ std::int32_t rank(const BitTable& table, int block_row, int cell) {
  const int entry = block_row * table.pitch() + cell / 32;
  return table.before[entry] + ones_below(table.words[entry], cell % 32);
}

/// Reads the mask into bits. Eight loads per warp are in flight at a time.
__device__ __forceinline__ void read_mask(const Params& params, const BitTable& table) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % 32, cols = static_cast<int>(params.tables.block_cols);
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < table.count(); first += kWarps * kBatch) {
    bool named[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int k = first + u * kWarps;
      const Place at(table, k);
      const int c = 32 * at.word + lane;
      named[u] = k < table.count() && c < cols && __ldg(params.mask + at.block_row * cols + c) != 0;
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int k = first + u * kWarps;
      const std::uint32_t word = __ballot_sync(kWarp, named[u]);
      if (lane == 0 && k < table.count()) table.words[Place(table, k).entry(table)] = word;
    }
  }
}

/// Fills table.before in the order of block rows and returns the number of ones. All threads call it, once
/// the words are complete; a barrier has to follow before any of them reads `before`.
__device__ __forceinline__ std::int32_t count_before(const BitTable& table,
                                                     std::int32_t (&warp_sums)[kWarps + 1]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (table.count() + kThreads - 1) / kThreads;
  const int begin = min(share * static_cast<int>(threadIdx.x), table.count()),
            end = min(begin + share, table.count());
  // Count the ones of this thread's words.
  std::int32_t own = 0;
  Place at(table, begin);
  for (int k = begin; k < end; ++k, at.step(table)) own += __popc(table.words[at.entry(table)]);
  // Prefix sums over the lanes, then over the warps.
  std::int32_t through = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  if (lane == 31) warp_sums[warp] = through;
  __syncthreads();
  if (warp == 0) {
    const std::int32_t warp_sum = warp_sums[lane];
    std::int32_t sum = warp_sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t lower = __shfl_up_sync(kWarp, sum, distance);
      if (lane >= distance) sum += lower;
    }
    warp_sums[lane] = sum - warp_sum;
    if (lane == 31) warp_sums[kWarps] = sum;
  }
  __syncthreads();
  // Write the number of ones before each word.
  std::int32_t running = warp_sums[warp] + through - own;
  at = Place(table, begin);
  for (int k = begin; k < end; ++k, at.step(table)) {
    table.before[at.entry(table)] = running;
    running += __popc(table.words[at.entry(table)]);
  }
  return warp_sums[kWarps];
}

/// moved[new slot] = old slot for every block that the mask keeps; the others stay -1. A warp takes a block
/// row of the old tables.
__device__ __forceinline__ void find_moved(const TopologyTables& tables, const BitTable& table,
                                           std::int32_t fill) {
  const auto capacity = static_cast<std::int32_t>(tables.capacity),
             cols = static_cast<std::int32_t>(tables.block_cols);
  for (int r = threadIdx.x / 32; r < table.block_rows; r += kWarps) {
    // Clamped, so that accesses stay inside the arrays even if the old tables are invalid: they have not been
    // validated since they were last open to writes.
    const std::int32_t begin = max(tables.crow[r], 0), end = min(tables.crow[r + 1], capacity);
    for (std::int32_t i = begin + static_cast<int>(threadIdx.x % 32); i < end; i += 32) {
      const std::int32_t c = tables.col[i];
      if (c < 0 || c >= cols) continue;
      const std::int32_t p = rank(table, r, c);
      const bool named = (table.words[r * table.pitch() + c / 32] >> (c % 32) & 1u) != 0;
      if (named && p < capacity) tables.moved[p + min(r * cols + c - p, fill)] = i;
    }
  }
}

/// Writes crow and col. The table becomes that of the blocks themselves, and `before` their slots; `all`: the
/// number of blocks.
__device__ __forceinline__ void write_rows(const TopologyTables& tables, const BitTable& table,
                                           std::int32_t fill, std::int32_t all) {
  const auto capacity = static_cast<std::int32_t>(tables.capacity),
             cols = static_cast<std::int32_t>(tables.block_cols);
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int k = threadIdx.x / 32; k < table.count(); k += kWarps) {
    const Place at(table, k);
    const int entry = at.entry(table), c = 32 * at.word + lane;
    const std::uint32_t word = table.words[entry];
    const std::int32_t p = table.before[entry] + ones_below(word, lane), others = at.block_row * cols + c - p;
    const std::int32_t slot = min(p, capacity) + min(others, fill);
    const bool exists = c < cols && ((word >> lane & 1u) != 0 ? p < capacity : others < fill);
    if (exists) tables.col[slot] = c;
    const std::uint32_t blocks = __ballot_sync(kWarp, exists);
    __syncwarp();  // all lanes have read the entry
    if (lane == 0) {
      table.words[entry] = blocks;
      table.before[entry] = slot;
      if (at.word == 0) tables.crow[at.block_row] = slot;
    }
  }
  if (threadIdx.x == 0) tables.crow[table.block_rows] = all;
}

/// across = table transposed, the words only. A warp transposes 32 x 32 cells.
__device__ __forceinline__ void transpose(const BitTable& table, const BitTable& across) {
  const int lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < across.block_row_words * table.block_row_words; k += kWarps) {
    const int down = k / table.block_row_words, word = k - down * table.block_row_words;
    const int r = 32 * down + lane, c = 32 * word + lane;
    const std::uint32_t word_of_row = r < table.block_rows ? table.words[r * table.pitch() + word] : 0u;
    std::uint32_t column = 0;
#pragma unroll
    for (int bit = 0; bit < 32; ++bit) {
      const std::uint32_t column_bits = __ballot_sync(kWarp, (word_of_row >> bit & 1u) != 0);
      if (lane == bit) column = column_bits;
    }
    if (c < across.block_rows) across.words[c * across.pitch() + down] = column;
  }
}

/// Writes ccol, row and slot.
__device__ __forceinline__ void write_columns(const TopologyTables& tables, const BitTable& table,
                                              const BitTable& across, std::int32_t all) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int k = threadIdx.x / 32; k < across.count(); k += kWarps) {
    const Place at(across, k);
    const int entry = at.entry(across), r = 32 * at.word + lane;
    const std::uint32_t word = across.words[entry];
    const std::int32_t first = across.before[entry];
    if ((word >> lane & 1u) != 0) {
      const std::int32_t to = first + ones_below(word, lane);
      tables.row[to] = r;
      tables.slot[to] = rank(table, r, at.block_row);
    }
    if (lane == 0 && at.word == 0) tables.ccol[at.block_row] = first;
  }
  if (threadIdx.x == 0) tables.ccol[across.block_rows] = all;
}

__global__ void __launch_bounds__(kThreads) topology_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ std::int32_t warp_sums[kWarps + 1];
  const TopologyTables& tables = params.tables;
  BitTable table(static_cast<int>(tables.block_rows), static_cast<int>(tables.block_cols));
  BitTable across(static_cast<int>(tables.block_cols), static_cast<int>(tables.block_rows));
  std::byte* const scratch = params.scratch == nullptr ? shared : params.scratch;
  table.place(scratch);
  across.place(scratch + table.bytes());
  const auto capacity = static_cast<std::int32_t>(tables.capacity);

  read_mask(params, table);
  __syncthreads();
  const std::int32_t named = count_before(table, warp_sums);
  const bool moving = params.flags != nullptr, overflow = moving && named > capacity;
  // Later slots stay free.
  const std::int32_t touched =
      moving ? max(min(max(tables.crow[tables.block_rows], 0), capacity), named) : capacity;
  for (std::int32_t slot = threadIdx.x; slot < capacity; slot += kThreads)
    tables.moved[slot] = overflow ? slot : slot < touched ? -1 : kSlotStaysFree;
  if (threadIdx.x == 0) {
    *tables.requested = named;
    if (overflow) *params.flags |= kTopologyOverflow;
  }
  if (overflow) return;  // uniformly
  const std::int32_t fill = moving ? 0 : max(capacity - named, 0), all = moving ? named : capacity;
  __syncthreads();
  find_moved(tables, table, fill);
  __syncthreads();  // the old crow and col have been read
  write_rows(tables, table, fill, all);
  __syncthreads();
  transpose(table, across);
  __syncthreads();
  count_before(across, warp_sums);
  __syncthreads();
  write_columns(tables, table, across, all);
}

}  // namespace sparseloom::kernels::cuda::topology
