// The epilogue of sm90_decode and sm90_decode_lines: sums to slots of shared memory, and slots to outputs.
#pragma once

#include "kernels/bsr_linear/sm90/decode/cut.cuh"
#include "kernels/bsr_linear/sm90/decode/math.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/opaque.cuh"

namespace sparseloom::kernels::cuda::decode90 {

/// Stores a warp's sums to a slot, from which they are added to those of other warps.
template <class C>
__device__ __forceinline__ void store_slot(const Sums<C>& sums, float4* slot, int lane) {
  ptx::opaque(lane);  // else the addresses fill the registers of the mainloop
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = line_row<C>(tile, lane / 4 + i / 2 * 8);
        // This is slot_four(8 t + lane % 4 * 2 + i % 2, ..), written as one address for all t plus a
        // constant.
        float4* const place = slot + slot_four(lane % 4 * 2, row / 4) + (8 * t + i % 2) * slot_four(1, 0);
        reinterpret_cast<float*>(place)[row % 4] = sums[tile][t][i];
      }
    }
  }
}

template <class C>
__device__ __forceinline__ float bias_of(const Params& params, int row) {
  if (params.bias == nullptr || row >= params.rows) return 0;
  return C::Mma::to_float(ptx::ld_global(static_cast<const std::uint16_t*>(params.bias) + row));
}

template <class C>
__device__ __forceinline__ float residual_of(const Params& params, int token, int row) {
  if (params.residual == nullptr || token >= params.m || row >= params.rows) return 0;
  const auto* residual = static_cast<const std::uint16_t*>(params.residual);
  return C::Mma::to_float(ptx::ld_global(residual + token * params.residual_stride + row));
}

/// Stores the outputs of a strip that this warp has summed alone. Such strips have few blocks, and there may
/// be more of them than slots.
template <class C>
__device__ __forceinline__ void store_strip(const Params& params, const Sums<C>& sums, int strip, int lane) {
  ptx::opaque(lane);
  auto* out = static_cast<std::uint16_t*>(params.out);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int row = strip * kStrip + line_row<C>(tile, lane / 4),
              other = strip * kStrip + line_row<C>(tile, lane / 4 + 8);
    const float bias = bias_of<C>(params, row), other_bias = bias_of<C>(params, other);
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      float y[4] = {sums[tile][t][0] + bias, sums[tile][t][1] + bias, sums[tile][t][2] + other_bias,
                    sums[tile][t][3] + other_bias};
      epilogue::activate(params.activation, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * t + lane % 4 * 2 + i % 2, at = i < 2 ? row : other;
        if (token < params.m && at < params.rows)
          out[token * params.out_stride + at] =
              static_cast<std::uint16_t>(C::Mma::rounded(y[i] + residual_of<C>(params, token, at), 0));
      }
    }
  }
}

/// The bias bits of four outputs: the constructor starts the load, and the addition waits for it.
struct BiasFour {
  std::uint16_t bits[4] = {};

  __device__ __forceinline__ BiasFour(const Params& params, int row) {
    if (params.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      bits[i] =
          ptx::ld_global_if(row + i < params.rows, static_cast<const std::uint16_t*>(params.bias) + row + i);
  }
};

/// Stores four outputs of a token.
template <class C>
__device__ __forceinline__ void store_four(const Params& params, const float4& sum, const BiasFour& bias,
                                           int token, int row) {
  if (token >= params.m || row >= params.rows) return;
  float y[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] += C::Mma::to_float(bias.bits[i]);
  if (params.activation != Activation::none) epilogue::activate(params.activation, y);
  if (params.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] += residual_of<C>(params, token, row + i);
  }
  const std::uint32_t low = C::Mma::rounded(y[0], y[1]), high = C::Mma::rounded(y[2], y[3]);
  auto* out = static_cast<std::uint16_t*>(params.out) + token * params.out_stride + row;
  if (params.out_fours && row + 3 < params.rows) {
    *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
    return;
  }
  const std::uint32_t words[2] = {low, high};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < params.rows) out[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
}

/// Adds up the strips that the warps of the cluster share, in the order of their units, and stores all strips
/// except those of store_block_row. A warp takes four tokens of a strip at a time. number: this warp's number
/// in the cluster.
template <class C>
__device__ __forceinline__ void finish(const Params& params, const Rows& rows, const Share& share,
                                       const Shared<C>& shared, int number, int lane) {
  const int tasks = (share.last_strip - share.first_strip) << params.fours_log2, four = lane % 8;
  for (int task = number; task < tasks; task += share.warps) {
    const int strip = share.first_strip + (task >> params.fours_log2);
    const int token = (task & ((1 << params.fours_log2) - 1)) * 4 + lane / 8;
    const int begin = rows.unit_of(strip) - share.first_unit, length = rows.length(strip >> rows.strips_log2);
    float4 sum = {};
    if (length > 0) {
      const int first = share.warp_of(begin, lane), last = share.warp_of(begin + length - 1, lane);
      // A single warp has already stored the strip.
      if (first == last) continue;
      const unsigned rank_mask = (1u << params.cluster_log2) - 1;
      const auto add = [&](const float4* place, int warp) {
        const float4 sums = ptx::ld_shared_cluster(place + slot_four(token, four), warp & rank_mask);
        sum.x += sums.x;
        sum.y += sums.y;
        sum.z += sums.z;
        sum.w += sums.w;
      };
      // Add the sums of the warps in which the strip continues, then those of the warp in which it ends.
#pragma unroll 4
      for (int warp = first; warp < last; ++warp)
        add(reinterpret_cast<const float4*>(shared.rings[warp >> params.cluster_log2]), warp);
      add(shared.heads[last >> params.cluster_log2], last);
    }
    store_four<C>(params, sum, BiasFour(params, strip * kStrip + four * 4), token, strip * kStrip + four * 4);
  }
}

}  // namespace sparseloom::kernels::cuda::decode90
