// Index tables of a block mask, on the device, in place of the old ones: forward's crow and col, dX's ccol,
// row and slot, and where each block lay before. dW walks crow and col.
//
//   mask bytes -> bits -> rank of each cell -> moved (old tables read) -> crow, col -> bits transposed ->
//   ccol, row, slot
//
// One thread block. A warp takes a word of 32 cells and a lane a cell; ranks are prefix sums of the words'
// population counts, so nothing depends on the order of threads, and what a warp writes lies together in both
// directions. Rejected: a grid of thread blocks, which has to wait for each other twice per direction (six
// launches, or a cooperative one) to divide some 5 us of work.
//
// With p of the mask's cells before cell i in row-major order, min(p, capacity) + min(i - p, fill) blocks lie
// before it, where fill = max(capacity - cells of the mask, 0): of too many cells the first count, too few
// are filled up. So exactly `capacity` blocks exist whatever the mask holds, which is what lets every kernel,
// grid and workspace of the products stay as they are: dW writes each slot of its output because each is a
// block.
//
// Words and their prefix sums lie in shared memory where they fit (on an sm_90 grids of up to 640 x 640
// cells), else in workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom::kernels::cuda::topology {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kWarp = 0xffffffffu;

/// A bit matrix, 32 cells a word, and for each word the number of ones before it. Grids have fewer than 2^28
/// cells: all counts fit an int. An odd pitch: a warp that reads down a column of words meets 32 banks.
struct BitTable {
  std::uint32_t* words = nullptr;
  std::int32_t* before = nullptr;
  int lines, line_words;

  __host__ __device__ BitTable(int line_count, int cells)
      : lines(line_count), line_words((cells + 31) / 32) {}
  __host__ __device__ int pitch() const { return line_words | 1; }
  __host__ __device__ int count() const { return lines * line_words; }
  __host__ __device__ int entries() const { return lines * pitch(); }
  __host__ __device__ std::int64_t bytes() const { return std::int64_t{entries()} * 8; }
  __device__ void place(std::byte* memory) {
    words = reinterpret_cast<std::uint32_t*>(memory);
    before = reinterpret_cast<std::int32_t*>(words + entries());
  }
};

struct Params {
  const std::uint8_t* mask;
  TopologyTables tables;
  std::byte* scratch;  // null: shared memory
};

/// Word k of a table.
struct Place {
  int line, word;
  __device__ Place(const BitTable& table, int k)
      : line(k / table.line_words), word(k - line * table.line_words) {}
  __device__ void step(const BitTable& table) {
    if (++word == table.line_words) ++line, word = 0;
  }
  __device__ int entry(const BitTable& table) const { return line * table.pitch() + word; }
};

/// Ones of a word below a place in it.
__device__ __forceinline__ std::int32_t ones_below(std::uint32_t word, int place) {
  return __popc(word & ((1u << place) - 1u));
}

/// Ones of the table before a cell.
__device__ __forceinline__ std::int32_t rank(const BitTable& table, int line, int cell) {
  const int entry = line * table.pitch() + cell / 32;
  return table.before[entry] + ones_below(table.words[entry], cell % 32);
}

/// The cells that the mask names, as bits. Eight loads of a warp are in flight at a time.
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
      named[u] = k < table.count() && c < cols && __ldg(params.mask + at.line * cols + c) != 0;
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int k = first + u * kWarps;
      const std::uint32_t word = __ballot_sync(kWarp, named[u]);
      if (lane == 0 && k < table.count()) table.words[Place(table, k).entry(table)] = word;
    }
  }
}

/// Fills table.before in the order of lines and returns the number of ones. By all threads, once the words
/// are complete; a barrier has to follow before anybody reads `before`.
__device__ __forceinline__ std::int32_t count_before(const BitTable& table,
                                                     std::int32_t (&warp_sums)[kWarps + 1]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (table.count() + kThreads - 1) / kThreads;
  const int begin = min(share * static_cast<int>(threadIdx.x), table.count()),
            end = min(begin + share, table.count());
  std::int32_t own = 0;
  Place at(table, begin);
  for (int k = begin; k < end; ++k, at.step(table)) own += __popc(table.words[at.entry(table)]);
  std::int32_t through = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  if (lane == 31) warp_sums[warp] = through;
  __syncthreads();
  if (warp == 0) {
    const std::int32_t mine = warp_sums[lane];
    std::int32_t sum = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t lower = __shfl_up_sync(kWarp, sum, distance);
      if (lane >= distance) sum += lower;
    }
    warp_sums[lane] = sum - mine;
    if (lane == 31) warp_sums[kWarps] = sum;
  }
  __syncthreads();
  std::int32_t running = warp_sums[warp] + through - own;
  at = Place(table, begin);
  for (int k = begin; k < end; ++k, at.step(table)) {
    table.before[at.entry(table)] = running;
    running += __popc(table.words[at.entry(table)]);
  }
  return warp_sums[kWarps];
}

/// moved[new slot] = old slot of every block that the mask names again; the others stay -1. A warp takes a
/// row of the old tables.
__device__ __forceinline__ void find_moved(const TopologyTables& tables, const BitTable& table,
                                           std::int32_t fill) {
  const auto capacity = static_cast<std::int32_t>(tables.capacity),
             cols = static_cast<std::int32_t>(tables.block_cols);
  for (int r = threadIdx.x / 32; r < table.lines; r += kWarps) {
    // Inside the arrays also when the old tables are none: nobody has looked at them since anybody could
    // write there.
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

/// crow and col; the table becomes that of the blocks themselves, `before` their slots.
__device__ __forceinline__ void write_rows(const TopologyTables& tables, const BitTable& table,
                                           std::int32_t fill) {
  const auto capacity = static_cast<std::int32_t>(tables.capacity),
             cols = static_cast<std::int32_t>(tables.block_cols);
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int k = threadIdx.x / 32; k < table.count(); k += kWarps) {
    const Place at(table, k);
    const int entry = at.entry(table), c = 32 * at.word + lane;
    const std::uint32_t word = table.words[entry];
    const std::int32_t p = table.before[entry] + ones_below(word, lane), others = at.line * cols + c - p;
    const std::int32_t slot = min(p, capacity) + min(others, fill);
    const bool exists = c < cols && ((word >> lane & 1u) != 0 ? p < capacity : others < fill);
    if (exists) tables.col[slot] = c;
    const std::uint32_t blocks = __ballot_sync(kWarp, exists);
    __syncwarp();  // all lanes have read the entry
    if (lane == 0) {
      table.words[entry] = blocks;
      table.before[entry] = slot;
      if (at.word == 0) tables.crow[at.line] = slot;
    }
  }
  if (threadIdx.x == 0) tables.crow[table.lines] = capacity;
}

/// across = table transposed, the words alone. A warp takes 32 x 32 cells.
__device__ __forceinline__ void transpose(const BitTable& table, const BitTable& across) {
  const int lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < across.line_words * table.line_words; k += kWarps) {
    const int down = k / table.line_words, word = k - down * table.line_words;
    const int r = 32 * down + lane, c = 32 * word + lane;
    const std::uint32_t mine = r < table.lines ? table.words[r * table.pitch() + word] : 0u;
    std::uint32_t column = 0;
#pragma unroll
    for (int bit = 0; bit < 32; ++bit) {
      const std::uint32_t found = __ballot_sync(kWarp, (mine >> bit & 1u) != 0);
      if (lane == bit) column = found;
    }
    if (c < across.lines) across.words[c * across.pitch() + down] = column;
  }
}

/// ccol, row and slot.
__device__ __forceinline__ void write_columns(const TopologyTables& tables, const BitTable& table,
                                              const BitTable& across) {
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
      tables.slot[to] = rank(table, r, at.line);
    }
    if (lane == 0 && at.word == 0) tables.ccol[at.line] = first;
  }
  if (threadIdx.x == 0) tables.ccol[across.lines] = static_cast<std::int32_t>(tables.capacity);
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

  for (std::int32_t slot = threadIdx.x; slot < capacity; slot += kThreads) tables.moved[slot] = -1;
  read_mask(params, table);
  __syncthreads();
  const std::int32_t named = count_before(table, warp_sums);
  const std::int32_t fill = max(capacity - named, 0);
  if (threadIdx.x == 0) *tables.requested = named;
  __syncthreads();
  find_moved(tables, table, fill);
  __syncthreads();  // the old crow and col were read
  write_rows(tables, table, fill);
  __syncthreads();
  transpose(table, across);
  __syncthreads();
  count_before(across, warp_sums);
  __syncthreads();
  write_columns(tables, table, across);
}

}  // namespace sparseloom::kernels::cuda::topology
