// Convolution with block-sparse channels on tensor cores, fp32 sums; out and x are channels-last:
//
//   forward  out[p, o] = act(sum over taps t, stored blocks (o, i) of W[t][o, i] x[under(p, t), i] + bias[o])
//   dx       dx[p, i]  = sum over taps t, stored blocks (o, i) of W[t][o, i] dy[under(p, t), o]
//
// A thread block computes kTokens pixels of one block row (dx: block column). Under each tap, each pixel of
// the tile meets a pixel of the other tensor, or lies outside it and meets zeros:
//
//   pixels  x  . # . . # .    channels under the stored blocks, once per tap, each row at its own address
//                |     |
//                v     v      gathered into a ring of kStages chunks in shared memory
//              A [pixels][chunk], B [block row][chunk] (dx: [chunk][block row]); sums += A B by mma.sync
//
// Taps of one block are consecutive, so that their common pixels of x come from L2. The order of summation is
// fixed: blocks of a block row in list order, and the taps of each in order.
//
// grid.x: tiles of pixels, and block rows, which vary fastest; grid.y: classes of pixels (../walk.h)
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/sm80/forward_mma/gather.cuh"
#include "kernels/bsr_conv/sm80/forward_mma/params.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/kernel.cuh"

namespace sparseloom::kernels::cuda::conv_forward {

/// Rounds and stores the tile's sums through the ring, which must be free.
template <class T>
__device__ __forceinline__ void store_tile(const Params& params, SharedStorage<T>& shared, unsigned block_row,
                                           const mma::forward::Sums<T>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const strip = reinterpret_cast<float*>(shared.ring[0]) + warp * 16 * T::kSumsStride;
  const mma::forward::Columns<T> columns(params, block_row);
  // Rolled, so that the activations exist once; the inner loop selects registers by constant indices.
#pragma unroll 1
  for (int turn = 0; turn < T::kFragmentsM; ++turn) {
#pragma unroll
    for (int i = 0; i < T::kFragmentsM; ++i) {
      if (i == turn) mma::forward::spread<T>(strip, sums[i]);
    }
    __syncwarp();
    const int first = warp / T::kWarpsN * T::kWarpTokens + turn * 16;
    if (columns.exist > 0) {
#pragma unroll 2
      for (int row = lane / mma::forward::Columns<T>::kLanes; row < 16;
           row += mma::forward::Columns<T>::kRows) {
        const std::int64_t own = shared.own[first + row];
        if (own < 0) break;  // later ones are negative too
        const float4 sum = *reinterpret_cast<const float4*>(strip + row * T::kSumsStride +
                                                            lane % mma::forward::Columns<T>::kLanes * 4);
        float y[4] = {sum.x + columns.bias[0], sum.y + columns.bias[1], sum.z + columns.bias[2],
                      sum.w + columns.bias[3]};
        epilogue::activate(params.activation, y);
        if (params.residual != nullptr) {
          const auto* more = static_cast<const typename T::Bits*>(params.residual) +
                             own * params.residual_stride + columns.column;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (e < columns.exist) y[e] += T::Element::to_f32(more[e]);
          }
        }
        mma::forward::store_four<T>(
            static_cast<typename T::Bits*>(params.out) + own * params.out_stride + columns.column, y,
            columns.exist, params.store_vectors);
      }
    }
    __syncwarp();
  }
}

template <class Direction, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    conv_forward_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<T>*>(shared_bytes);
  const unsigned block_row = blockIdx.x % params.block_rows, tile = blockIdx.x / params.block_rows;
  if (!find_pixels<Direction, T>(params, shared, tile, blockIdx.y)) return;
  const Stream<Direction, T> stream(params, shared.walk, block_row);
  const int chunks = stream.chunks(params);
  const bool finds = threadIdx.x < SharedStorage<T>::kPieces;
  const auto find = [&](int chunk) {
    return stream.find(params, shared, chunk, static_cast<int>(threadIdx.x));
  };
  const Rows<T> rows(params, shared);
  const auto fetch = [&](int chunk, int stage) {
    const std::uint32_t to = ptx::shared_address(shared.ring[stage]);
    fetch_a<T>(params, shared, rows, shared.pieces[chunk % 2], to);
    fetch_b<T>(Direction{}, params, shared.pieces[chunk % 2], to + T::kABytes);
  };

  // Prologue: fill all stages but one, and find the pieces of the next chunk. Pieces of a chunk are
  // overwritten once those of the next one were read, which the barrier in between guarantees.
#pragma unroll 1
  for (int chunk = 0; chunk < T::kStages - 1; ++chunk) {
    if (finds) shared.pieces[chunk % 2][threadIdx.x] = find(chunk);
    __syncthreads();
    if (chunk < chunks) fetch(chunk, chunk);
    ptx::cp_async_commit();
  }
  if (finds) shared.pieces[(T::kStages - 1) % 2][threadIdx.x] = find(T::kStages - 1);

  mma::forward::Sums<T> sums = {};
  int stage = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // Wait for the stage. After the barrier, all warps have also read the stage that is filled next.
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();
    const std::uint32_t a = ptx::shared_address(shared.ring[stage]), b = a + T::kABytes;
    mma::forward::Fragments<T> fragments[2];
    mma::forward::load_a<T>(fragments[0], a, 0);
    mma::forward::load_b<T>(Direction{}, fragments[0], b, 0);
    // Start to find the pieces of a later chunk: the index arrives while this chunk is multiplied.
    Piece piece;
    if (finds) piece = find(chunk + T::kStages);
    // Issue the copies of the chunk before that one.
    if (chunk + T::kStages - 1 < chunks)
      fetch(chunk + T::kStages - 1, stage == 0 ? T::kStages - 1 : stage - 1);
    ptx::cp_async_commit();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      if (step + 1 < T::kSteps) {
        mma::forward::load_a<T>(fragments[(step + 1) % 2], a, step + 1);
        mma::forward::load_b<T>(Direction{}, fragments[(step + 1) % 2], b, step + 1);
      }
      mma::forward::multiply<T>(sums, fragments[step % 2]);
    }
    if (finds) shared.pieces[(chunk + T::kStages) % 2][threadIdx.x] = piece;
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
  store_tile<T>(params, shared, block_row, sums);
}

}  // namespace sparseloom::kernels::cuda::conv_forward
