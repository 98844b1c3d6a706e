// A warp of sm90_decode_lines, blocks of 16 x 16. Included by decode_line_launch.cuh.
//
// L2 answers some 145 requests a nanosecond, and a block's tokens are 32 of them, of 32 bytes each: at 32
// tokens that, not W, is the limit (133 a nanosecond at density .2). So few blocks go here, more to
// decode_passing.cuh.
#pragma once

#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/sm90/decode_line.cuh"

namespace sparseloom::kernels::cuda::decode90::line {

/// Blocks, of which the warp takes every warps-th. k is shared out as in decode_math.cuh, four to a lane:
/// lane 4 g + q holds eight bytes of the rows g and g + 8 of a block, and of token g of eight.
template <class C>
class NarrowWalk {
 public:
  /// Reads nothing that another kernel may write. slot: for this warp's sums.
  __device__ __forceinline__ NarrowWalk(const Params& params, char* slot, char* /*barriers*/, int warp,
                                        int warps, int lane)
      : params_(params),
        slot_(reinterpret_cast<float4*>(slot)),
        lane_(lane),
        warp_(warp),
        warps_(warps),
        columns_in_(params.cols - lane % 4 * 4) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      x_[t] = static_cast<std::uint32_t>(min(lane / 4 + 8 * t, params.m - 1)) *
                  static_cast<std::uint32_t>(params.x_stride * 2) +
              lane % 4 * 8;
      ptx::opaque(x_[t]);
    }
  }

  __device__ __forceinline__ void run(const Line& line) {
    const char* w =
        static_cast<const char*>(params_.values) + std::int64_t{line.first} * C::kBlockBytes + lane_ * 8;
    int columns[C::kAhead];
    Piece pieces[C::kAhead];
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) columns[i] = column(line, warp_ + i * warps_);
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) {
      load_x(pieces[i], columns[i], warp_ + i * warps_ < line.count);
      columns[i] = column(line, warp_ + (C::kAhead + i) * warps_);
    }
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) load_w(pieces[i], w, warp_ + i * warps_, line.count);
    float sums[C::kTokenTiles][4] = {};
    for (int first = warp_; first < line.count; first += C::kAhead * warps_) {
#pragma unroll
      for (int i = 0; i < C::kAhead; ++i) {
        const int block = first + i * warps_, ahead = block + C::kAhead * warps_;
        if (block >= line.count) break;
        const std::uint32_t a[4] = {pieces[i].low.x, pieces[i].high.x, pieces[i].low.y, pieces[i].high.y};
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) C::Mma::mma(sums[t], a, pieces[i].x[t].x, pieces[i].x[t].y);
        load_w(pieces[i], w, ahead, line.count);
        load_x(pieces[i], columns[i], ahead < line.count);
        columns[i] = column(line, ahead + C::kAhead * warps_);
      }
    }
    store(sums);
  }

 private:
  struct Piece {
    uint2 low, high, x[C::kTokenTiles];  // rows g and g + 8 of W, tokens
  };

  __device__ __forceinline__ int column(const Line& line, int block) const {
    return block < line.count ? ptx::ld_global(params_.col + line.first + block) : 0;
  }

  __device__ __forceinline__ void load_w(Piece& piece, const char* w, int block, int count) const {
    const char* from = w + std::int64_t{block} * C::kBlockBytes;
    piece.low = ptx::ld_global_once_if(block < count, reinterpret_cast<const uint2*>(from));
    piece.high =
        ptx::ld_global_once_if(block < count, reinterpret_cast<const uint2*>(from + C::kBlockBytes / 2));
  }

  /// Zeros beyond the last column; columns are a multiple of 8.
  __device__ __forceinline__ void load_x(Piece& piece, int column, bool there) const {
    there = there && column * 16 < columns_in_;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      const char* from =
          static_cast<const char*>(params_.x) + (x_[t] + static_cast<std::uint32_t>(column) * 32);
      piece.x[t] = ptx::ld_global_if(there, reinterpret_cast<const uint2*>(from));
    }
  }

  __device__ __forceinline__ void store(const float (&sums)[C::kTokenTiles][4]) const {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane_ / 4 + i / 2 * 8, token = 8 * t + lane_ % 4 * 2 + i % 2;
        reinterpret_cast<float*>(slot_ + C::slot_four(token, row / 4))[row % 4] = sums[t][i];
      }
    }
  }

  const Params& params_;
  float4* const slot_;
  const int lane_, warp_, warps_, columns_in_;  // columns_in_: behind this lane's first
  std::uint32_t x_[C::kTokenTiles];             // where its tokens begin, bytes
};

}  // namespace sparseloom::kernels::cuda::decode90::line
