// The epilogue of sm90_mma: out = round(act(sums + bias) + residual). stmatrix transposes the sums of 16
// outputs x 8 tokens into shared memory, from where TMA stores boxes, so that padding needs no test.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/tile.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

/// The sums of a warp in mma.sync's layout: a lane has outputs lane / 4 and lane / 4 + 8 of each block row,
/// at tokens 2 (lane % 4) and 2 (lane % 4) + 1 of every eight.
template <class T>
using Sums = float[T::kWarpBlockRows][T::kTokens / 8][4];

/// The destination of a warp: the first token of the tile, the first output of the warp.
struct Place {
  std::int32_t token, output;
};

template <class T>
struct Bias {
  float of[T::kWarpBlockRows][2];
};

template <class T>
__device__ __forceinline__ Bias<T> fetch_bias(const Params& params, const Place& place) {
  Bias<T> bias = {};
  if constexpr (!T::kIsDx) {
    if (params.bias != nullptr) {
      const auto* all = static_cast<const typename T::Element::Bits*>(params.bias);
#pragma unroll
      for (int i = 0; i < T::kWarpBlockRows * 2; ++i) {
        const std::int32_t output = place.output + i * 8 + static_cast<std::int32_t>(threadIdx.x % 32 / 4);
        if (output < params.out_width) bias.of[i / 2][i % 2] = T::Element::to_f32(all[output]);
      }
    }
  }
  return bias;
}

/// Shared addresses of a warp's staging buffer, and of the mbarrier of the residual's copies into it.
struct Exit {
  std::uint32_t staging, residual;
};

/// Stores the box of kStoreTokens tokens that begins at token `first` of the tile.
template <class T, class Function>
__device__ __forceinline__ void store_box(const CUtensorMap& map, const Params& params, const Place& place,
                                          const Bias<T>& bias, const Exit& exit, const Sums<T>& sums,
                                          int first, Function function, bool adds) {
  const int lane = threadIdx.x % 32;
  // Wait until the staging buffer is free, and fetch the residual into it.
  if (ptx::elect_lane()) {
    ptx::bulk_wait_read<0>();  // the previous store has read the buffer
    if (adds) {
      ptx::mbarrier_arrive_expect_tx(exit.residual, T::kStoreBytes);
      ptx::tma_load_2d(exit.staging, &params.residual, place.output, place.token + first, exit.residual);
    }
  }
  __syncwarp();
  if (adds) ptx::mbarrier_wait(exit.residual, first / T::kStoreTokens % 2);
    // Finish the sums and write them, transposed, in place of the residual.
#pragma unroll
  for (int n = 0; n < T::kStoreTokens / 8; ++n) {
    const int row = n * 8 + lane % 8, chunk = lane / 8 ^ row / 2 % 4;
    const std::uint32_t at = exit.staging + row * T::kStoreRowBytes + chunk * 16;
    std::uint32_t pairs[4] = {};
    if (adds) ptx::ldmatrix_x4_trans(pairs, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&sum)[4] = sums[i / 2][first / 8 + n];
      float low = function(sum[i % 2 * 2] + bias.of[i / 2][i % 2]),
            high = function(sum[i % 2 * 2 + 1] + bias.of[i / 2][i % 2]);
      if (adds) {
        low += T::Element::to_f32(static_cast<std::uint16_t>(pairs[i]));
        high += T::Element::to_f32(static_cast<std::uint16_t>(pairs[i] >> 16));
      }
      pairs[i] = T::Element::pair(low, high);
    }
    ptx::stmatrix_x4_trans(at, pairs);
  }
  // Issue the TMA store.
  ptx::fence_proxy_async();
  __syncwarp();
  if (ptx::elect_lane()) {
    ptx::tma_store_2d(&map, place.output, place.token + first, exit.staging, params.out_policy);
    ptx::bulk_commit();
  }
}

template <class T, class Function>
__device__ __forceinline__ void store_by(const CUtensorMap& map, const Params& params, const Place& place,
                                         const Bias<T>& bias, const Exit& exit, const Sums<T>& sums,
                                         Function function, bool adds) {
#pragma unroll
  for (int first = 0; first < T::kTokens; first += T::kStoreTokens)
    store_box<T>(map, params, place, bias, exit, sums, first, function, adds);
}

template <class T>
__device__ __forceinline__ void store(const Params& params, const Place& place, const Bias<T>& bias,
                                      const Exit& exit, const Sums<T>& sums) {
  constexpr auto none = [](float v) { return v; };
  const auto by = [&](auto function) {
    store_by<T>(params.out, params, place, bias, exit, sums, function, !T::kIsDx && params.add_residual);
  };
  if constexpr (T::kIsDx) {
    by(none);
  } else {
    if (params.store_pre) store_by<T>(params.pre, params, place, bias, exit, sums, none, false);
    epilogue::with_activation<true>(params.activation, by);
  }
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
