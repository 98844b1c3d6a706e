// Loads of W and X by the warps of wide.cuh, which includes it.
#pragma once

#include "kernels/bsr_linear/sm90/decode_lines/rows/math.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/bulk.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::decode_lines::rows {

/// Starts the copy of a stage: columns part * kStageColumns and on, of the kBlockRow rows from `row` on in
/// the matrix [blocks * bm, bn]. One thread calls it.
template <class C>
__device__ __forceinline__ void load_w(const Params& params, int row, int part, std::uint32_t to,
                                       std::uint32_t full) {
  constexpr auto kOfW = ptx::L2Policy::evict_first;  // W is read once; measured faster as well
  ptx::mbarrier_arrive_expect_tx(full, C::kStageBytes);
  if constexpr (C::kWide) {
    ptx::tma_load_2d(to, &params.w, part * C::kStageColumns, row, full, kOfW);
  } else {
    const char* from = static_cast<const char*>(params.values) + std::int64_t{row} * (C::kStageColumns * 2);
    ptx::bulk_load(to, from, C::kStageBytes, full, kOfW);
  }
}

/// Loads X for a lane, 16 bytes of each of its tokens, from L2 or L1.
template <class C>
class TokenReader {
 public:
  /// Lanes past the last token read that token again; their sums are not stored.
  __device__ __forceinline__ TokenReader(const Params& params, int lane)
      : x_(static_cast<const char*>(params.x)), cols_(params.cols), first_(lane % 4 * 8) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      rows_[t] = static_cast<std::uint32_t>(min(lane / 4 + 8 * t, params.m - 1)) *
                 static_cast<std::uint32_t>(params.x_stride * 2);
      ptx::opaque(rows_[t]);  // keeps the offset in a register, or every load would recompute it
    }
  }

  /// Loads the lane's share of columns k .. k + 31. Columns past the last give zeros (the number of columns
  /// is a multiple of 8), and so does everything if not `exists`.
  __device__ __forceinline__ void load(Tokens<C>& x, int k, bool exists) const {
    k += first_;
    const bool inside = exists && k < cols_;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t)
      x[t] = ptx::ld_global_if(
          inside, reinterpret_cast<const uint4*>(x_ + (rows_[t] + static_cast<std::uint32_t>(k) * 2)));
  }

 private:
  const char* const x_;
  const int cols_, first_;
  std::uint32_t rows_[C::kTokenTiles];  // byte offsets of the lane's tokens
};

}  // namespace sparseloom::kernels::cuda::decode_lines::rows
