// How the warps of sm90_decode and sm90_decode_lines get W and X. Included by decode.cuh and
// decode_line_wide.cuh.
#pragma once

#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/ptx/sm90/bulk.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/decode_math.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// Starts the copy of a stage: kLine rows of [blocks * bm, bn] from `row`, the part-th kStageColumns of them.
/// By one thread.
template <class C>
__device__ __forceinline__ void load_w(const Params& params, int row, int part, std::uint32_t to,
                                       std::uint32_t full) {
  constexpr auto kOfW = ptx::L2Policy::evict_first;  // read once; and 2 to 4 % faster
  ptx::mbarrier_arrive_expect_tx(full, C::kStageBytes);
  if constexpr (C::kWide) {
    ptx::tma_load_2d(to, &params.w, part * C::kStageColumns, row, full, kOfW);
  } else {
    const char* from = static_cast<const char*>(params.values) + std::int64_t{row} * (C::kStageColumns * 2);
    ptx::bulk_load(to, from, C::kStageBytes, full, kOfW);
  }
}

/// Reads X for a lane: 16 bytes of each of its tokens, from L2 or L1.
template <class C>
class TokenReader {
 public:
  /// Tokens beyond the last read it again: their sums are not stored.
  __device__ __forceinline__ TokenReader(const Params& params, int lane)
      : x_(static_cast<const char*>(params.x)), cols_(params.cols), first_(lane % 4 * 8) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      rows_[t] = static_cast<std::uint32_t>(min(lane / 4 + 8 * t, params.m - 1)) *
                 static_cast<std::uint32_t>(params.x_stride * 2);
      ptx::opaque(rows_[t]);  // kept, not made anew at every load
    }
  }

  /// Of columns k .. k + 31, zeros beyond the last column; columns are a multiple of 8. Nothing if not
  /// `there`.
  __device__ __forceinline__ void load(Tokens<C>& x, int k, bool there) const {
    k += first_;
    const bool inside = there && k < cols_;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t)
      x[t] = ptx::ld_global_if(
          inside, reinterpret_cast<const uint4*>(x_ + (rows_[t] + static_cast<std::uint32_t>(k) * 2)));
  }

 private:
  const char* const x_;
  const int cols_, first_;
  std::uint32_t rows_[C::kTokenTiles];  // where they begin
};

}  // namespace sparseloom::kernels::cuda::decode90
