// The warp of sm90_shares that copies: TMA copies a box of X and one of W for each piece.
#pragma once

#include "kernels/bsr_linear/sm90/shares/stream.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/flag.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::shares {

/// Entries of an index list: 32 in a register of the warp, and the next 32 in flight.
class Window {
 public:
  __device__ __forceinline__ Window(const std::int32_t* list, std::int32_t end, std::int32_t first)
      : list_(list),
        end_(end),
        first_(first),
        lane_(threadIdx.x % 32),
        now_(load(first)),
        next_(load(first + 32)) {}

  /// The entry at a position of the list. All lanes of the warp pass the same position.
  __device__ __forceinline__ std::int32_t at(std::int32_t position) {
    if (static_cast<unsigned>(position - first_) >= 32) {
      const bool follows = static_cast<unsigned>(position - first_) < 64;
      first_ = follows ? first_ + 32 : position;
      now_ = follows ? next_ : load(first_);
      next_ = load(first_ + 32);
    }
    return __shfl_sync(~0u, now_, position - first_);
  }

 private:
  __device__ __forceinline__ std::int32_t load(std::int32_t first) const {
    return ptx::ld_global_if(first + lane_ < end_, list_ + first + lane_);
  }

  const std::int32_t* list_;
  std::int32_t end_, first_;
  int lane_;
  std::int32_t now_, next_;
};

/// Waits until `count` shares have left their sums, and clears their flags.
__device__ __forceinline__ void await_shares(std::uint64_t* flags, std::uint64_t nonce, int count) {
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    while (ptx::ld_acquire_gpu(flags + i) != nonce) {
    }
    flags[i] = 0;
  }
  __syncwarp();
}

/// blocks: the total number.
template <class C>
__device__ __forceinline__ void produce(const Params& params, const Lists& lists, const Cut& cut,
                                        Cursor cursor, int share, std::int32_t blocks, Shared<C>& shared) {
  constexpr int kPieces = kChunk / C::kPiece;
  constexpr int kPieceWBytes = C::kStrip * C::kPiece * 2, kPieceXStep = C::kTokens * C::kPiece * 2;
  const std::uint32_t full = ptx::shared_address(shared.full), empty = ptx::shared_address(shared.empty),
                      ring = ptx::shared_address(shared.ring);
  const int first_token = static_cast<int>(blockIdx.y) * params.tile_tokens;
  const std::uint32_t piece_bytes = params.tile_tokens * (C::kPiece * 2) + kPieceWBytes;
  const std::int32_t first = cursor.first + (cursor.piece >> params.pieces_log2);
  Window along(params.along, blocks, first), slots(params.slot, C::kDx ? blocks : 0, first);
  int stage = 0, others = 0;
  unsigned parity = 1;
  while (cursor.more) {
    // Find the pieces.
    const int chunk_pieces = min(kPieces, cursor.end_piece - cursor.piece);
    std::int32_t x_column[kPieces] = {}, w_row[kPieces] = {}, in_block[kPieces] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i >= chunk_pieces) break;
      const int piece = cursor.piece + i;
      const std::int32_t block = cursor.first + (piece >> params.pieces_log2);
      in_block[i] = (piece & ((1 << params.pieces_log2) - 1)) * kChunk;
      x_column[i] = (along.at(block) << params.k_side_log2) + in_block[i];
      if constexpr (C::kDx) {
        w_row[i] = (slots.at(block) << params.k_side_log2) + in_block[i];
      } else {
        w_row[i] = (block << params.side_log2) + cursor.strip * C::kStrip;
      }
    }
    const Record record = record_of<C>(params, cut, cursor, max(chunk_pieces, 0));
    if (record.end == kAdds) others = record.last - share;
    // Wait until the stage is free, and start its copies.
    ptx::mbarrier_wait(empty + stage * 8, parity);
    if (ptx::elect_lane()) {
      shared.records[stage] = record;
      const std::uint32_t barrier = full + stage * 8, to = ring + stage * C::kStageBytes;
      ptx::mbarrier_arrive_expect_tx(barrier, max(chunk_pieces, 0) * piece_bytes);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (i >= chunk_pieces) break;
        ptx::tma_load_2d(to + C::kXBytes + i * kPieceWBytes, &params.w,
                         C::kDx ? cursor.strip * C::kStrip : in_block[i], w_row[i], barrier);
        ptx::tma_load_2d(to + i * kPieceXStep, &params.x, x_column[i], first_token, barrier);
      }
    }
    advance(params, lists, cursor, chunk_pieces);
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  ptx::mbarrier_wait(empty + stage * 8, parity);
  if (ptx::elect_lane()) {
    shared.records[stage].end = kNoStage;
    ptx::mbarrier_arrive(full + stage * 8);
  }
  // Wait for the flags of the strip that begins here and continues in other shares; only the last strip can.
  if (others == 0) return;
  await_shares(params.flags + std::int64_t{blockIdx.y} * params.shares + share + 1, params.nonce, others);
  if (ptx::elect_lane()) ptx::mbarrier_arrive(ptx::shared_address(&shared.met));
}

}  // namespace sparseloom::kernels::cuda::shares
