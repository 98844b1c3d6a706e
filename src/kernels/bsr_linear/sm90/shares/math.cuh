// Multiplies a stage: the fragments of X and W, and the sums of a warp.
#pragma once

#include "kernels/bsr_linear/sm90/shares/config.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"

namespace sparseloom::kernels::cuda::shares {

template <class C>
using Sums = float[C::kFragmentsM][C::kFragmentsN][4];

/// A warp's position in the thread block.
template <class C>
struct Warp {
  int lane, m, n, k;

  __device__ __forceinline__ Warp() : lane(threadIdx.x % 32) {
    const int warp = threadIdx.x / 32;
    n = warp % C::kWarpsN;
    m = warp / C::kWarpsN % C::kWarpsM;
    k = warp / (C::kWarpsN * C::kWarpsM);
  }
};

/// steps: the valid steps of the stage.
template <class C>
__device__ __forceinline__ void multiply(Sums<C>& sums, const Warp<C>& warp, std::uint32_t x, std::uint32_t w,
                                         int steps) {
  using Rows = Swizzle<C::kPiece * 2>;
  const int lane = warp.lane;
#pragma unroll
  for (int s = 0; s < C::kSteps; ++s) {
    const int step = warp.k * C::kSteps + s;
    if (step >= steps) break;
    const int piece = step * 16 / C::kPiece, column = step * 16 % C::kPiece / 8;
    std::uint32_t a[C::kFragmentsM][4], b[C::kFragmentsN][2];
    const std::uint32_t x_rows = x + piece * (C::kTokens * C::kPiece * 2) +
                                 Rows::offset(warp.m * C::kWarpTokens + lane % 16, column + lane / 16);
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) ptx::ldmatrix_x4(a[i], x_rows + i * 16 * C::kPiece * 2);
#pragma unroll
    for (int j = 0; j < C::kFragmentsN; j += 2) {
      std::uint32_t pair[4];
      if constexpr (C::kDx) {
        const int group = warp.n * C::kWarpStrip / 8 + j + lane / 16;
        ptx::ldmatrix_x4_trans(pair, w + Swizzle<C::kStrip * 2>::offset(step * 16 + lane % 16, group));
      } else {
        const int row = warp.n * C::kWarpStrip + lane / 16 * 8 + lane % 8;
        ptx::ldmatrix_x4(pair, w + piece * (C::kStrip * C::kPiece * 2) +
                                   Rows::offset(row, column + lane / 8 % 2) + j * 8 * C::kPiece * 2);
      }
      b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
    }
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < C::kFragmentsN; ++j) C::Element::mma(sums[i][j], a[i], b[j]);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::shares
