// forward: out [m, rows] = act(x [m, cols] W^T + bias)          dx: out [m, cols] = dy [m, rows] W          W block-sparse, fp32
// sums
//
//   one thread block: kTokens tokens x one block line        x     . # . . # # .        the stored blocks of the line, side by
//   side, (block row of W: forward, block column: dx)            tokens    |     | |          are the reduction of a dense tile
//   product:
//                                                                    v     v v          the inner loop never asks what is present
//   ring of kStages chunks in shared memory            A [tokens][chunk]: # # #
//   chunk: 128 bytes of the reduction (64 where a      B [line][chunk] or [chunk][line]
//   64 x 64 warp tile wants 256 tokens to fit)         sums += A B, mma.sync, warp tile up to 64 x 64
//
// Fixed order of summation: a line's blocks in list order, in chunks. Grid: token panels outside, lines inside, so that a panel of
// x stays in L2 while all lines read it. Lists of any length, empty ones too; copies behind their end write zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/sm80/dds_epilogue.cuh"
#include "kernels/cuda/sm80/dds_gather.cuh"

namespace sparseloom::kernels::cuda::dds {

template <class T>
struct Fragments {
  std::uint32_t a[T::kFragmentsM][4];
  std::uint32_t b[T::kFragmentsN][2];
};

template <class T>
__device__ __forceinline__ void load_a(Fragments<T>& fragments, std::uint32_t tile, int step) {
  using Rows = Swizzle<T::kChunkBytes>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Quarters in the order of mma's a: top left, bottom left, top right, bottom right; eight lanes name the rows of each.
  const int row = warp / T::kWarpsN * T::kWarpTokens + lane % 16, half = lane / 16;
#pragma unroll
  for (int i = 0; i < T::kFragmentsM; ++i) {
    ptx::ldmatrix_x4(fragments.a[i], tile + Rows::offset(row, step * 2 + half) + i * 16 * T::kChunkBytes);
  }
}

/// B [kLine][kChunk]: two fragments of 8 columns per ldmatrix, the low and the high half of k of each.
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
      fragments.b[j][0] = pair[0], fragments.b[j][1] = pair[1], fragments.b[j + 1][0] = pair[2], fragments.b[j + 1][1] = pair[3];
    }
  }
}

/// B [kChunk][kLine], 16-bit: the same quarters, transposed on the way.
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
      fragments.b[j][0] = pair[0], fragments.b[j][1] = pair[1], fragments.b[j + 1][0] = pair[2], fragments.b[j + 1][1] = pair[3];
    }
  }
}

/// B [kChunk][kLine], 32-bit: element by element.
template <class T>
requires(T::kBytes == 4) __device__ __forceinline__ void load_b(Dx, Fragments<T>& fragments, std::uint32_t tile, int step) {
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
__device__ __forceinline__ void multiply(float (&sums)[T::kFragmentsM][T::kFragmentsN][4], Fragments<T>& fragments) {
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
__device__ __forceinline__ Place place_of(const Params& params, unsigned thread_block) {
  const unsigned panel = thread_block / params.lines, line = thread_block % params.lines;
  const std::int64_t token = std::int64_t{panel} * T::kTokens, left = params.m - token;
  const std::int32_t first = params.list_begin[line], end = params.list_begin[line + 1];
  return {line, token, left < T::kTokens ? static_cast<int>(left) : T::kTokens, first, end - first};
}

template <class Direction, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) mma_dds_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  const Place place = place_of<T>(params, blockIdx.x);
  const int chunks = static_cast<int>(((std::int64_t{place.count} << params.side_log2) + T::kChunk - 1) / T::kChunk);

  // The entries that the first copies need; from then on the group of chunk c brings those of chunk c + kStages - 1, so that the
  // chain list -> address -> copy never waits inside the loop.
#pragma unroll
  for (int c = 0; c < T::kStages - 1; ++c) fetch_index<Direction, T>(params, place, shared, c);
  ptx::cp_async_commit();
  fetch_bias<T>(params, place, shared);
  ptx::cp_async_wait<0>();
  __syncthreads();
#pragma unroll 1
  for (int c = 0; c < T::kStages - 1; ++c) {
    if (c < chunks) fetch_chunk<Direction, T>(params, place, shared, c, c);
    fetch_index<Direction, T>(params, place, shared, c + T::kStages - 1);
    ptx::cp_async_commit();
  }

  float sums[T::kFragmentsM][T::kFragmentsN][4] = {};
  for (int c = 0, stage = 0; c < chunks; ++c) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();  // chunk c is there for all, and all are done with the stage that is filled next
    const std::uint32_t a = ptx::shared_address(shared.ring[stage]), b = a + T::kABytes;
    Fragments<T> fragments[2];
    load_a<T>(fragments[0], a, 0);
    load_b<T>(Direction{}, fragments[0], b, 0);
    const int ahead = c + T::kStages - 1;
    if (ahead < chunks) fetch_chunk<Direction, T>(params, place, shared, ahead, stage == 0 ? T::kStages - 1 : stage - 1);
    fetch_index<Direction, T>(params, place, shared, ahead + T::kStages - 1);
    ptx::cp_async_commit();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      if (step + 1 < T::kSteps) {
        load_a<T>(fragments[(step + 1) % 2], a, step + 1);
        load_b<T>(Direction{}, fragments[(step + 1) % 2], b, step + 1);
      }
      multiply<T>(sums, fragments[step % 2]);
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring is free for the epilogue
  store_tile<T>(params, place, shared, sums);
}

}  // namespace sparseloom::kernels::cuda::dds
