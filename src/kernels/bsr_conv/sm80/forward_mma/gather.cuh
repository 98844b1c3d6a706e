// Copies one chunk of the reduction from global to shared memory. The reduction of an output block row runs
// over its stored blocks, over the taps of each, and over the block's side:
//
//   stream   | block 0, tap 0 | block 0, tap 1 | .. | block 1, tap 0 | ..      cut into chunks of T::kChunk
//   pieces   the elements of a chunk that belong to one block and tap: one piece if the side is a chunk or
//            more, otherwise several
//
// A few threads find the pieces of a chunk, one each, a chunk before all threads copy them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm80/forward_mma/params.cuh"
#include "kernels/bsr_linear/sm80/mma/forward/gather.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::conv_forward {

/// The stream of a block row.
template <class Direction, class T>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Params& params, const Walk (&walk)[3], unsigned block_row)
      : first_(params.list_begin[block_row]), count_(params.list_begin[block_row + 1] - first_) {
    const int taps = walk[0].taps * walk[1].taps * walk[2].taps;
    taps_ = static_cast<unsigned>(taps > 0 ? taps : 1);
    blocks_ = count_ * taps;
  }

  /// Number of chunks of the stream.
  __device__ __forceinline__ int chunks(const Params& params) const {
    return static_cast<int>(((std::int64_t{blocks_} << params.side_log2) + T::kChunk - 1) / T::kChunk);
  }

  /// Finds piece `number` of a chunk. If it does not exist, its copies are zeros.
  __device__ __forceinline__ Piece find(const Params& params, const SharedStorage<T>& shared, int chunk,
                                        int number) const {
    const std::int64_t start = std::int64_t{chunk} * T::kChunk + number * 8;
    const auto at = static_cast<unsigned>(start >> params.side_log2);
    // Pieces are numbered by their first eight elements of the chunk.
    const bool exists =
        at < static_cast<unsigned>(blocks_) && (number * 8 & ((1 << params.side_log2) - 1)) == 0;
    if (!exists) return {kNoPixel, 0, -1, 0, kNeedsTooMuch};
    const unsigned entry = at / taps_, of_walk = at - entry * taps_;
    const std::int32_t place = first_ + static_cast<std::int32_t>(entry);
    const std::int32_t along = __ldg(params.along + place),
                       block = kIsDx<Direction> ? __ldg(params.slot + place) : place;
    const Tap tap = of_walk < static_cast<unsigned>(SharedStorage<T>::kTaps)
                        ? shared.taps[of_walk]
                        : tap_of(shared.walk, params.axis, of_walk);
    const std::int32_t offset = static_cast<int>(start) & ((1 << params.side_log2) - 1);
    return {tap.adds, (along << params.side_log2) + offset, block * params.kernel_taps + tap.of_kernel,
            offset, tap.needs};
  }

 private:
  std::int32_t first_, count_;  // the block row's list
  std::int32_t blocks_;         // stored blocks times taps
  unsigned taps_;
};

/// Copies 16 bytes of which `bytes` exist, by cp.async if `aligned` allows it.
template <class Bits>
__device__ __forceinline__ void copy(std::uint32_t to, const Bits* from, int bytes, bool aligned) {
  if (aligned) {
    ptx::cp_async_cg(to, from, bytes);
  } else {
    mma::forward::copy_elements(to, from, bytes);
  }
}

/// The pixels that a thread copies: every kStep-th one of the tile, 16 bytes of each.
template <class T>
struct Rows {
  static constexpr int kChunks = T::kChunkBytes / 16, kStep = T::kThreads / kChunks,
                       kCount = T::kTokens / kStep;
  Under under[kCount];

  /// Reads them if there are few taps; otherwise copies look into shared memory.
  __device__ __forceinline__ Rows(const Params& params, const SharedStorage<T>& shared) {
    if (!params.few_taps) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) under[i] = shared.under[threadIdx.x / kChunks + i * kStep];
  }
};

/// A [kTokens][kChunk]: a thread keeps its position along the reduction and steps over the pixels.
template <class T>
__device__ __forceinline__ void fetch_a(const Params& params, const SharedStorage<T>& shared,
                                        const Rows<T>& rows, const Piece (&pieces)[SharedStorage<T>::kPieces],
                                        std::uint32_t to) {
  using Lines = mma::forward::Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  const int row = threadIdx.x / Rows<T>::kChunks, c = threadIdx.x % Rows<T>::kChunks;
  const int inside =
      c * T::kPack & ((1 << params.side_log2) - 1);  // offset in a piece; kPack and side are powers of 2
  const Piece& piece = pieces[(c * T::kPack - inside) / 8];
  const int column = piece.column + inside;
  const std::int64_t left = params.a_width - column;
  const int bytes = left <= 0 ? 0 : left < T::kPack ? static_cast<int>(left) * T::kBytes : 16;
  const auto* const from = static_cast<const Bits*>(params.a);
  to += Lines::offset(row, c);
  if (params.few_taps && params.copy_a) {
    const std::uint32_t needs = piece.needs;
    const auto stride = static_cast<std::int32_t>(params.a_stride);
    const auto* const first = from + std::int64_t{piece.tap.number} * stride + column;
#pragma unroll
    for (int i = 0; i < Rows<T>::kCount; ++i) {
      const bool inside = (needs & ~rows.under[i].inside) == 0;
      const auto* const at = first + std::int64_t{rows.under[i].number} * stride;
      ptx::cp_async_cg(to + i * Rows<T>::kStep * T::kChunkBytes, inside ? at : from, inside ? bytes : 0);
    }
    return;
  }
  const Pixel tap = piece.tap;
  const auto copies = [&](bool aligned) {
#pragma unroll 4
    for (int i = 0; i < Rows<T>::kCount; ++i) {
      const std::int32_t number = moved(shared.pixels[row + i * Rows<T>::kStep], tap, shared.walk);
      copy(to + i * Rows<T>::kStep * T::kChunkBytes,
           number < 0 ? from : from + number * params.a_stride + column, number < 0 ? 0 : bytes, aligned);
    }
  };
  if (params.copy_a) {
    copies(true);
  } else {
    copies(false);
  }
}

/// Forward's B [kBlockRow][kChunk], of blocks [kBlockRow][side].
template <class T>
__device__ __forceinline__ void fetch_b(Forward, const Params& params,
                                        const Piece (&pieces)[SharedStorage<T>::kPieces], std::uint32_t to) {
  using Lines = mma::forward::Swizzle<T::kChunkBytes>;
  using Bits = typename T::Bits;
  constexpr int kRowStep = T::kThreads / Lines::kChunks,
                kCopies = T::kBlockRow < kRowStep ? 1 : T::kBlockRow / kRowStep;
  const int row = threadIdx.x / Lines::kChunks, c = threadIdx.x % Lines::kChunks;
  if (row >= T::kBlockRow) return;
  const int inside = c * T::kPack & ((1 << params.side_log2) - 1);
  const Piece& piece = pieces[(c * T::kPack - inside) / 8];
  const std::int64_t block = piece.block < 0 ? 0 : piece.block;
  const auto* from = static_cast<const Bits*>(params.values) +
                     ((block * T::kBlockRow + row) << params.side_log2) + piece.offset + inside;
  to += Lines::offset(row, c);
  const int bytes = piece.block < 0 ? 0 : 16;
  const auto copies = [&](bool aligned) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += std::int64_t{kRowStep} << params.side_log2)
      copy(to + i * kRowStep * T::kChunkBytes, from, bytes, aligned);
  };
  if (params.copy_b) {
    copies(true);
  } else {
    copies(false);
  }
}

/// dx's B [kChunk][kBlockRow], of blocks [side][kBlockRow]: a row of the tile is a row of some block.
template <class T>
__device__ __forceinline__ void fetch_b(Dx, const Params& params,
                                        const Piece (&pieces)[SharedStorage<T>::kPieces], std::uint32_t to) {
  using Lines = mma::forward::DxRows<T>;
  using Bits = typename T::Bits;
  constexpr int kAll = T::kChunk * Lines::kChunks, kCopies = kAll < T::kThreads ? 1 : kAll / T::kThreads;
  constexpr int kRowStep = T::kThreads / Lines::kChunks;
  if (threadIdx.x >= kAll) return;
  const int first = threadIdx.x / Lines::kChunks, c = threadIdx.x % Lines::kChunks;
  const auto copies = [&](bool aligned) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = first + i * kRowStep;
      const int inside = row & ((1 << params.side_log2) - 1);
      const Piece& piece = pieces[(row - inside) / 8];
      const std::int64_t block = piece.block < 0 ? 0 : piece.block;
      const auto* const from = static_cast<const Bits*>(params.values) +
                               ((block << params.side_log2) + piece.offset + inside) * T::kBlockRow +
                               c * T::kPack;
      copy(to + Lines::offset(row, c), from, piece.block < 0 ? 0 : 16, aligned);
    }
  };
  if (params.copy_b) {
    copies(true);
  } else {
    copies(false);
  }
}

}  // namespace sparseloom::kernels::cuda::conv_forward
