// Forward and dx with a block-sparse W on tensor cores, fp32 sums:
//   forward: out [m, rows] = act(x [m, cols] W^T + bias)        dx: out [m, cols] = dy [m, rows] W
// For dx, "block row" means block column in all files of this folder.
//
// A thread block computes tiles of kTokens tokens x one block row. The stored blocks of the block row, side
// by side, are the reduction of a dense product, so the mainloop never asks which blocks are present:
//
//   tokens  x  . # . . # # .     columns that meet the stored blocks of the block row
//                |     | |
//                v     v v       gathered into a ring of kStages chunks in shared memory:
//              A [tokens][chunk], B [block row][chunk] (dx: [chunk][block row])
//              sums += A B by mma.sync, warp tiles of up to 64 x 64
//
// A chunk is 128 bytes of the reduction, or 64 if a 64 x 64 warp tile needs this to fit 256 tokens.
//
// The order of summation is fixed: the blocks of a block row in list order, in chunks. Block rows vary
// fastest in the grid, so that an M tile of x stays in L2 while all block rows read it. A thread block
// computes block_rows_in_turn block rows of one M tile through the same ring, so that the copies of its
// neighbours hide the prologue and the epilogue of a short block row.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/bsr_linear/sm80/mma/forward/epilogue.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/gather.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"

namespace sparseloom::kernels::cuda::mma::forward {

template <class T>
struct Fragments {
  std::uint32_t a[T::kFragmentsM][4];
  std::uint32_t b[T::kFragmentsN][2];
};

template <class T>
__device__ __forceinline__ void load_a(Fragments<T>& fragments, std::uint32_t tile, int step) {
  using Rows = Swizzle<T::kChunkBytes>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The 8 x 8 matrices come in the order of the MMA's A: top left, bottom left, top right, bottom right.
  // Eight lanes give the addresses of each one's rows.
  const int row = warp / T::kWarpsN * T::kWarpTokens + lane % 16, half = lane / 16;
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) {
    ptx::ldmatrix_x4(fragments.a[i], tile + Rows::offset(row, step * 2 + half) + i * 16 * T::kChunkBytes);
  }
}

/// Forward, B [kBlockRow][kChunk]: each ldmatrix loads two fragments of 8 columns, the low and the high half
/// of k of each.
template <class T>
__device__ __forceinline__ void load_b(Forward, Fragments<T>& fragments, std::uint32_t tile, int step) {
  using Rows = Swizzle<T::kChunkBytes>;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % T::kWarpsN * T::kWarpLine;
  if constexpr (T::kFragmentsN == 1) {
    ptx::ldmatrix_x2(fragments.b[0], tile + Rows::offset(first + lane % 8, step * 2 + lane / 8 % 2));
  } else {
#pragma unroll
    for (int j = 0; j < T::kFragmentsN; j += 2) {
      std::uint32_t pair[4];
      const int row = first + lane / 16 * 8 + lane % 8;
      ptx::ldmatrix_x4(pair, tile + Rows::offset(row, step * 2 + lane / 8 % 2) + j * 8 * T::kChunkBytes);
      fragments.b[j][0] = pair[0], fragments.b[j][1] = pair[1], fragments.b[j + 1][0] = pair[2],
      fragments.b[j + 1][1] = pair[3];
    }
  }
}

/// Dx, B [kChunk][kBlockRow], 16-bit: the same matrices, transposed by ldmatrix.
template <class T>
__device__ __forceinline__ void load_b(Dx, Fragments<T>& fragments, std::uint32_t tile, int step) {
  using Rows = DxRows<T>;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % T::kWarpsN * T::kWarpLine;
  const int row = step * 16 + lane % 16;
  if constexpr (T::kFragmentsN == 1) {
    ptx::ldmatrix_x2_trans(fragments.b[0], tile + Rows::offset(row, first / 8));
  } else {
#pragma unroll
    for (int j = 0; j < T::kFragmentsN; j += 2) {
      std::uint32_t pair[4];
      ptx::ldmatrix_x4_trans(pair, tile + Rows::offset(row, first / 8 + j + lane / 16));
      fragments.b[j][0] = pair[0], fragments.b[j][1] = pair[1], fragments.b[j + 1][0] = pair[2],
      fragments.b[j + 1][1] = pair[3];
    }
  }
}

/// Dx, B [kChunk][kBlockRow], 32-bit: element by element, since ldmatrix transposes only 16-bit elements.
template <class T>
requires(T::kBytes == 4) __device__ __forceinline__
    void load_b(Dx, Fragments<T>& fragments, std::uint32_t tile, int step) {
  using Rows = DxRows<T>;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % T::kWarpsN * T::kWarpLine;
  const int row = step * 8 + lane % 4, column = lane / 4;
#pragma unroll
  for (int j = 0; j < T::kFragmentsN; ++j) {
    const int chunk = (first + j * 8 + column) / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      fragments.b[j][h] = ptx::ld_shared_b32(tile + Rows::offset(row + h * 4, chunk) + column % 4 * 4);
    }
  }
}

template <class T>
__device__ __forceinline__ void multiply(Sums<T>& sums, Fragments<T>& fragments) {
  if constexpr (T::kBytes == 4) {
#pragma unroll
    for (auto& a : fragments.a) {
      for (auto& bits : a) bits = ptx::cvt_rna_tf32(bits);
    }
#pragma unroll
    for (auto& b : fragments.b) {
      for (auto& bits : b) bits = ptx::cvt_rna_tf32(bits);
    }
  }
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < T::kFragmentsN; ++j) T::Element::mma(sums[i][j], fragments.a[i], fragments.b[j]);
  }
}

template <class T>
__device__ __forceinline__ void clear(Sums<T>& sums) {
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (auto& fragment : row) {
#pragma unroll
      for (float& sum : fragment) sum = 0.0f;
    }
  }
}

/// Starts the copies of the stream's next chunk, if there is one, and loads the index entries of the chunk
/// after it.
template <class Direction, class T>
__device__ __forceinline__ void fetch_next(const Params& params, const Place& place, Cursor& cursor,
                                           Entries& entries, SharedStorage<T>& shared, int stage) {
  if (cursor.block_row >= place.end_block_row) return;
  fetch_chunk<Direction, T>(params, place, cursor, entries, shared, stage);
  advance<T>(params, place, cursor);
  entries = read_entries<Direction, T>(params, cursor);
}

// Tags. Alone: a thread block computes whole block rows, block_rows_in_turn of them. Team: the thread blocks
// of a cluster each sum a segment of one block row (split-K), for calls with fewer tiles than
// multiprocessors.
struct Alone {};
struct Team {};

template <class Direction, class T, class Crew>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    mma_forward_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  constexpr bool kTeam = std::is_same_v<Crew, Team>;
  const unsigned segments = kTeam ? params.segments : 1;  // the cluster's size; its indices are consecutive
  Place place = place_of<T>(params, blockIdx.x / segments);
  if constexpr (kTeam)
    place.segment = static_cast<int>(blockIdx.x % segments), place.segments = static_cast<int>(segments);

  // Prologue: fill all stages but one.
  Cursor cursor = cursor_at<T>(params, place);
  Entries entries = read_entries<Direction, T>(params, cursor);
#pragma unroll 1
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    fetch_next<Direction, T>(params, place, cursor, entries, shared, stage);
    ptx::cp_async_commit();
  }

  Sums<T> sums = {};
  int stage = 0;
  for (unsigned block_row = place.block_row; block_row < place.end_block_row;) {
    // Wait for the stage. After the barrier, all warps have also read the stage that is filled next.
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();
    const std::uint32_t a = ptx::shared_address(shared.ring[stage]), b = a + T::kABytes;
    const bool ends_block_row = shared.ends_block_row[stage];
    Fragments<T> fragments[2];
    load_a<T>(fragments[0], a, 0);
    load_b<T>(Direction{}, fragments[0], b, 0);
    // Issue the copies of a later chunk.
    fetch_next<Direction, T>(params, place, cursor, entries, shared, stage == 0 ? T::kStages - 1 : stage - 1);
    ptx::cp_async_commit();
    // Multiply, with the fragments of the next step loaded ahead.
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      if (step + 1 < T::kSteps) {
        load_a<T>(fragments[(step + 1) % 2], a, step + 1);
        load_b<T>(Direction{}, fragments[(step + 1) % 2], b, step + 1);
      }
      multiply<T>(sums, fragments[step % 2]);
    }
    // Epilogue of the block row.
    if (ends_block_row) {
      if constexpr (kTeam) {
        ptx::cp_async_wait<0>();
        __syncthreads();
        store_block_row_of_team<T>(params, place, block_row, shared, sums);
        return;
      } else {
        __syncthreads();  // all warps have read this stage
        store_block_row<T>(params, place, block_row, shared.ring[stage], sums);
        clear<T>(sums);
        ++block_row;
      }
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }
  ptx::cp_async_wait<0>();
}

}  // namespace sparseloom::kernels::cuda::mma::forward
