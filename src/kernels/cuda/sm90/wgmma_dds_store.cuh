// out = round(act(sums + bias)): every warp on its own, 16 tokens x 64 columns at a time through its staging buffers, written by
// TMA, which clips at the last token and column. The writes run on while the next tile is multiplied.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/epilogue/activation.cuh"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/sm90/stmatrix.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

template <class T>
using Sums = float[T::kTokenBlocks][T::kLines][T::kSlice / 2];

/// A warp's bias of one tile: lane t has columns t, t + 32, ... Fetched before the tile's loop, so that nothing waits for it
/// behind.
template <class T>
struct Bias {
  std::uint16_t bits[T::kOutputs / 32];
};

template <class T>
__device__ __forceinline__ Bias<T> fetch_bias(const Params& params, const Place& place) {
  Bias<T> bias;
#pragma unroll
  for (int i = 0; i < T::kOutputs / 32; ++i) {
    const std::int32_t column = place.output + i * 32 + static_cast<int>(threadIdx.x % 32);
    const bool exists = params.bias != nullptr && column < params.out_width;
    bias.bits[i] = exists ? __ldg(static_cast<const std::uint16_t*>(params.bias) + column) : std::uint16_t{0};
  }
  return bias;
}

/// Four 8 x 8 matrices: 16 rows x 16 columns of a box, whose rows TMA's 128-byte swizzle permutes.
template <class T>
__device__ __forceinline__ void stage_columns(std::uint32_t box, int columns_16, const float (&y)[8]) {
  const int lane = threadIdx.x % 32, row = lane % 16, chunk = columns_16 * 2 + lane / 16;
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = T::Element::pair(y[2 * i], y[2 * i + 1]);
  ptx::stmatrix_x4(box + row * 128 + ((chunk ^ row % 8) * 16), pairs);
}

template <class T, class Function>
__device__ __forceinline__ void store_activated(const Params& params, const Place& place, const Bias<T>& bias,
                                                std::uint32_t staging, int first_row, const Sums<T>& sums, Function activation) {
  const int lane = threadIdx.x % 32;
  int buffer = 0;
#pragma unroll
  for (int c = 0; c < T::kOutputs / T::kStoreColumns; ++c) {
    float shift[T::kStoreColumns / 4] = {};  // bias of this lane's columns
    if (params.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < T::kStoreColumns / 4; ++j) {
        const int column = c * T::kStoreColumns + j / 2 * 8 + j % 2;  // + 2 (lane % 4)
        const float own = T::Element::to_f32(bias.bits[column / 32]);
        shift[j] = __shfl_sync(0xffffffff, own, column % 32 + lane % 4 * 2);
      }
    }
#pragma unroll
    for (int block = 0; block < T::kTokenBlocks; ++block) {
      const std::uint32_t box = staging + buffer * T::kStoreBytes;
      if (ptx::elect_lane()) ptx::bulk_wait_read<T::kStagingBuffers - 1>();  // the write that used this buffer last has read it
      __syncwarp();
#pragma unroll
      for (int i = 0; i < T::kStoreColumns / 16; ++i) {
        float y[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int fragment = (c * T::kStoreColumns + i * 16) / 8 + e / 4;  // of 8 columns
          constexpr int kPerSlice = T::kSlice / 8;
          y[e] = activation(sums[block][fragment / kPerSlice][fragment % kPerSlice * 4 + e % 4] + shift[i * 4 + e / 4 * 2 + e % 2]);
        }
        stage_columns<T>(box, i, y);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (ptx::elect_lane()) {
        ptx::tma_store_2d(&params.out, place.output + c * T::kStoreColumns, place.token + first_row + block * 64, box);
        ptx::bulk_commit();
      }
      buffer = (buffer + 1) % T::kStagingBuffers;
    }
  }
}

/// One copy of the code per activation: inside the loops, a choice per value would cost more than the activation.
template <class T>
__device__ __forceinline__ void store_tile(const Params& params, const Place& place, const Bias<T>& bias, std::uint32_t staging,
                                           int first_row, const Sums<T>& sums) {
  const auto store = [&](auto activation) { store_activated<T>(params, place, bias, staging, first_row, sums, activation); };
  const auto none = [](float v) { return v; };
  if constexpr (T::kIsDx) {
    store(none);
  } else {
    switch (params.activation) {
      case Activation::none: store(none); break;
      case Activation::relu: store([](float v) { return epilogue::relu(v); }); break;
      case Activation::gelu_erf: store([](float v) { return epilogue::gelu_erf(v); }); break;
      case Activation::gelu_tanh: store([](float v) { return epilogue::gelu_tanh(v); }); break;
      case Activation::silu: store([](float v) { return epilogue::silu(v); }); break;
    }
  }
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
