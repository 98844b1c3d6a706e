// The end of a strip: store the outputs, or leave the sums for another share.
//
// The sums of a cut strip meet in the workspace. Every share but the first leaves its sums there, in most
// cases at its own start; the first adds them in the order of the shares, so that the bits are the same in
// every run. A dedicated warp sets the flag, since it waits a microsecond until all multiprocessors see the
// sums, and the copying warp waits for the flags of others while the last stages are multiplied. The
// workspace may hold anything when the kernel starts: a flag counts as set if it holds the launch's nonce
// (see wgmma/dw/parts.cuh). A share waits only for thread blocks of lower index (kernel.cuh), which the GPU
// starts first, so the wait ends however few are resident.
//
// A fragment is 16 tokens x 8 outputs. A lane holds two neighbouring outputs of the tokens lane / 4 and
// lane / 4 + 8, as mma leaves them.
#pragma once

#include "kernels/bsr_linear/sm90/shares/math.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::shares {

template <class Element>
__device__ __forceinline__ void store_pair(void* matrix, std::int64_t at, float low, float high, bool both,
                                           bool pairs) {
  const std::uint32_t bits = Element::pair(low, high);
  auto* to = static_cast<std::uint16_t*>(matrix) + at;
  if (both && pairs) {
    *reinterpret_cast<std::uint32_t*>(to) = bits;
  } else {
    to[0] = static_cast<std::uint16_t>(bits);
    if (both) to[1] = static_cast<std::uint16_t>(bits >> 16);
  }
}

/// Stores a lane's outputs of a fragment. token and output: the first of its two each; end: the first token
/// past the last.
template <class Element>
__device__ __forceinline__ void store_fragment(const Params& params, int token, int end, int output,
                                               const float (&sums)[4]) {
  if (output >= params.out_width) return;
  const bool both = output + 1 < params.out_width;
  float bias[2] = {};
  if (params.bias != nullptr) {
    const auto* from = static_cast<const std::uint16_t*>(params.bias) + output;
    bias[0] = Element::to_f32(ptx::ld_global(from));
    if (both) bias[1] = Element::to_f32(ptx::ld_global(from + 1));
  }
  float y[4] = {sums[0] + bias[0], sums[1] + bias[1], sums[2] + bias[0], sums[3] + bias[1]};
  if (params.pre != nullptr) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (token + 8 * h < end)
        store_pair<Element>(params.pre, (token + 8 * h) * params.pre_stride + output, y[2 * h], y[2 * h + 1],
                            both, params.store_pre_pairs);
  }
  if (params.activation != Activation::none) epilogue::activate(params.activation, y);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (token + 8 * h >= end) break;
    if (params.residual != nullptr) {
      const auto* more = static_cast<const std::uint16_t*>(params.residual) +
                         (token + 8 * h) * params.residual_stride + output;
      y[2 * h] += Element::to_f32(ptx::ld_global(more));
      if (both) y[2 * h + 1] += Element::to_f32(ptx::ld_global(more + 1));
    }
    store_pair<Element>(params.out, (token + 8 * h) * params.out_stride + output, y[2 * h], y[2 * h + 1],
                        both, params.store_pairs);
  }
}

/// Adds the sums of the two warps that share a tile of outputs. Each then holds those of half of the columns:
/// warp k has the fragments from k * kFragmentsN / 2 on, moved to the front.
template <class C>
__device__ __forceinline__ void exchange(const Warp<C>& warp, float4* places, Sums<C>& sums) {
  constexpr int kHalf = C::kFragmentsN / 2;
  const int tile = warp.m * C::kWarpsN + warp.n;
  const auto place = [&](int k, int i, int j) {
    return places + (((tile * 2 + k) * C::kFragmentsM + i) * kHalf + j) * 32 + warp.lane;
  };
  ptx::named_barrier_sync<64>(1 + tile);  // the other warp has read the previous strip's sums
#pragma unroll
  for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      float other[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float low = sums[i][j][e], high = sums[i][j + kHalf][e];
        other[e] = warp.k == 0 ? high : low;
        sums[i][j][e] = warp.k == 0 ? low : high;
      }
      *place(warp.k, i, j) = make_float4(other[0], other[1], other[2], other[3]);
    }
  }
  ptx::named_barrier_sync<64>(1 + tile);
#pragma unroll
  for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const float4 more = *place(1 - warp.k, i, j);
      sums[i][j][0] += more.x, sums[i][j][1] += more.y, sums[i][j][2] += more.z, sums[i][j][3] += more.w;
    }
  }
}

/// A warp's own fragments at a strip's end.
template <class C>
struct Own {
  static constexpr int kColumns = C::kFragmentsN / C::kWarpsK;
  int first_column, first_row, rows;  // fragments of the tile; rows: those whose tokens exist

  __device__ __forceinline__ Own(const Warp<C>& warp, int tokens)
      : first_column(warp.n * C::kFragmentsN + warp.k * kColumns),
        first_row(warp.m * C::kFragmentsM),
        rows((tokens + 15) / 16 - first_row) {}
  __device__ __forceinline__ float4* place(float4* partials, int i, int j, int lane) const {
    return partials + ((first_row + i) * (C::kStrip / 8) + first_column + j) * 32 + lane;
  }
};

/// Leaves the sums for the share in which the strip begins.
template <class C>
__device__ __forceinline__ void leave(const Own<C>& own, float4* partials, int lane, const Sums<C>& sums) {
#pragma unroll
  for (int i = 0; i < C::kFragmentsM; ++i) {
    if (i >= own.rows) break;
#pragma unroll
    for (int j = 0; j < Own<C>::kColumns; ++j) {
      const float(&of)[4] = sums[i][j];
      __stcg(own.place(partials, i, j, lane), make_float4(of[0], of[1], of[2], of[3]));
    }
  }
}

/// Adds the sums that the same warp of the `count` following shares left, in the order of the shares.
/// partials: those of the first of them.
template <class C>
__device__ __forceinline__ void add_shares(const Own<C>& own, float4* partials, int count, int lane,
                                           Sums<C>& sums) {
  // 64 registers of loads at a time.
  constexpr int kAtOnce = 16 / (C::kFragmentsM * Own<C>::kColumns);
#pragma unroll kAtOnce
  for (int share = 0; share < count; ++share, partials += C::kFragments * 32) {
    float4 more[C::kFragmentsM][Own<C>::kColumns];
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < Own<C>::kColumns; ++j)
        more[i][j] = i < own.rows ? __ldcg(own.place(partials, i, j, lane)) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < Own<C>::kColumns; ++j) {
        sums[i][j][0] += more[i][j].x, sums[i][j][1] += more[i][j].y;
        sums[i][j][2] += more[i][j].z, sums[i][j][3] += more[i][j].w;
      }
    }
  }
}

/// Ends a strip. All consumer warps call it.
template <class C>
__device__ __forceinline__ void end_strip(const Params& params, const Warp<C>& warp, const Record& record,
                                          int share, Shared<C>& shared, Sums<C>& sums) {
  if constexpr (C::kWarpsK == 2) exchange<C>(warp, shared.exchange, sums);
  const int tile = static_cast<int>(blockIdx.y), first_token = tile * params.tile_tokens,
            end_token = min(params.m, first_token + params.tile_tokens);
  const Own<C> own(warp, end_token - first_token);
  if (record.end != kComplete) {
    const std::int64_t number = std::int64_t{tile} * params.shares + share;
    float4* const partials = params.partials + number * C::kFragments * 32;
    if (record.end == kContinues) {
      leave<C>(own, partials, warp.lane, sums);
      __syncwarp();
      if (warp.lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.left));
      return;
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared.met), 0);
    add_shares<C>(own, partials + C::kFragments * 32, record.last - share, warp.lane, sums);
  }
#pragma unroll
  for (int i = 0; i < C::kFragmentsM; ++i) {
    if (i >= own.rows) break;
#pragma unroll
    for (int j = 0; j < Own<C>::kColumns; ++j)
      store_fragment<typename C::Element>(
          params, first_token + (own.first_row + i) * 16 + warp.lane / 4, end_token,
          record.output + (own.first_column + j) * 8 + warp.lane % 4 * 2, sums[i][j]);
  }
}

}  // namespace sparseloom::kernels::cuda::shares
