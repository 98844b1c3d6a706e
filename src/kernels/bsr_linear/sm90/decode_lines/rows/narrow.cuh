// A warp of sm90_decode_lines with blocks of 16 x 16. Included by launch.cuh.
//
// With 32 tokens, L2's rate of requests is the limit, not W: the tokens of a block are 32 requests of 32
// bytes each, and L2 answers some 145 requests per nanosecond on an H200. So this kernel computes products of
// few blocks; those of more blocks go to x_streamed/kernel.cuh.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/rows/kernel.cuh"
#include "kernels/shared/ptx/opaque.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// A warp's walk over its blocks: every warps-th of the block row. k is distributed as in math.cuh, four to a
/// lane: lane 4 g + q holds eight bytes of the rows g and g + 8 of a block, and of token g of eight.
template <class C>
class NarrowWalk {
 public:
  /// Reads nothing that another kernel may write. slot: the slot for this warp's sums.
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

  __device__ __forceinline__ void run(const Strip& strip) {
    const char* w =
        static_cast<const char*>(params_.values) + std::int64_t{strip.first} * kBlockBytes + lane_ * 8;
    int columns[C::kAhead];
    Operands operands[C::kAhead];
    // Prologue: load columns, X and W of the first blocks.
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) columns[i] = column(strip, warp_ + i * warps_);
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) {
      load_x(operands[i], columns[i], warp_ + i * warps_ < strip.count);
      columns[i] = column(strip, warp_ + (C::kAhead + i) * warps_);
    }
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) load_w(operands[i], w, warp_ + i * warps_, strip.count);
    float sums[C::kTokenTiles][4] = {};
    for (int first = warp_; first < strip.count; first += C::kAhead * warps_) {
#pragma unroll
      for (int i = 0; i < C::kAhead; ++i) {
        const int block = first + i * warps_, ahead = block + C::kAhead * warps_;
        if (block >= strip.count) break;
        // Multiply the block.
        const std::uint32_t a[4] = {operands[i].low.x, operands[i].high.x, operands[i].low.y,
                                    operands[i].high.y};
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t)
          C::Mma::mma(sums[t], a, operands[i].x[t].x, operands[i].x[t].y);
        // Load a later block into its registers.
        load_w(operands[i], w, ahead, strip.count);
        load_x(operands[i], columns[i], ahead < strip.count);
        columns[i] = column(strip, ahead + C::kAhead * warps_);
      }
    }
    store(sums);
  }

 private:
  struct Operands {
    uint2 low, high, x[C::kTokenTiles];  // rows g and g + 8 of W, tokens
  };

  __device__ __forceinline__ int column(const Strip& strip, int block) const {
    return block < strip.count ? ptx::ld_global(params_.col + strip.first + block) : 0;
  }

  __device__ __forceinline__ void load_w(Operands& operands, const char* w, int block, int count) const {
    const char* from = w + std::int64_t{block} * kBlockBytes;
    operands.low = ptx::ld_global_once_if(block < count, reinterpret_cast<const uint2*>(from));
    operands.high =
        ptx::ld_global_once_if(block < count, reinterpret_cast<const uint2*>(from + kBlockBytes / 2));
  }

  /// Columns past the last give zeros; their number is a multiple of 8.
  __device__ __forceinline__ void load_x(Operands& operands, int column, bool exists) const {
    exists = exists && column * 16 < columns_in_;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      const char* from =
          static_cast<const char*>(params_.x) + (x_[t] + static_cast<std::uint32_t>(column) * 32);
      operands.x[t] = ptx::ld_global_if(exists, reinterpret_cast<const uint2*>(from));
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
  const int lane_, warp_, warps_, columns_in_;  // columns_in_: columns of X from this lane's first on
  std::uint32_t x_[C::kTokenTiles];             // byte offsets of the lane's tokens
};

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
