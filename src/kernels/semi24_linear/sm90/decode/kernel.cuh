// The kernel for few tokens: what it does is stream W through shared memory, so its time is that of W's
// bytes.
//
// A thread block multiplies a tile of 128 rows of W by all tokens, with the mainloop of forward_wgmma. Where
// there are fewer such tiles than multiprocessors, a cluster shares a tile: each of its thread blocks takes
// some of the K tiles, and they add their sums through distributed shared memory, in the order of their
// ranks, so that an output does not depend on who was first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/mainloop.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld_global.cuh"
#include "kernels/shared/ptx/sm90/cluster_rank.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::semi24 {

template <class Element, int kTokens>
using DecodeTile = Tile<Element, 1, kTokens,
                        (kTokens == 64   ? 6
                         : kTokens == 32 ? 8
                                         : 10)>;

struct DecodeOut {
  void* out;
  const void* residual;
  std::int64_t out_stride, residual_stride;  // elements
  std::int32_t tokens;
};

template <class T>
struct DecodeStorage {
  // Four floats more than rows: a warp's sums then meet all banks.
  static constexpr int kStride = T::kRows + 4;
  union {
    Rings<T> rings;
    float sums[T::kTokens][kStride];
  };
  Barriers<T> barriers;
};

__device__ __forceinline__ float ld_cluster_f32(std::uint32_t shared, unsigned rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(ptx::address_in_cluster(shared, rank)));
  return value;
}

/// Adds the thread blocks' sums of the tokens that are this one's share, and writes the outputs. A thread has
/// one output of kAtOnce tokens at a time: one by one, the latencies of shared memory took longer than
/// streaming a fifth of W.
template <class T>
__device__ __forceinline__ void store_share(const Params& params, const DecodeOut& to,
                                            const DecodeStorage<T>& shared, std::int32_t row, unsigned rank,
                                            unsigned ranks) {
  constexpr int kThreads = T::kConsumers * 128, kAtOnce = 8;
  static_assert(kThreads % T::kRows == 0, "neighbouring threads write neighbouring outputs");
  const std::int32_t within = static_cast<std::int32_t>(threadIdx.x) % T::kRows, output = row + within;
  if (output >= params.rows) return;
  const float bias =
      params.bias != nullptr
          ? T::Element::to_f32(ptx::ld_global(static_cast<const std::uint16_t*>(params.bias) + output))
          : 0.0f;
  const auto* const residual = static_cast<const std::uint16_t*>(to.residual);
  // Tokens are dealt out one by one, to all threads of all thread blocks that have this output.
  const std::int32_t step = kThreads / T::kRows * static_cast<std::int32_t>(ranks);
  const std::int32_t own = static_cast<std::int32_t>(rank) * (kThreads / T::kRows) +
                           static_cast<std::int32_t>(threadIdx.x) / T::kRows;
  for (std::int32_t first = own; first < to.tokens; first += kAtOnce * step) {
    const auto exists = [&](int i) { return first + i * step < to.tokens; };
    const auto sum_of = [&](int i) { return ptx::shared_address(&shared.sums[first + i * step][within]); };
    float y[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (exists(i)) y[i] = ranks == 1 ? shared.sums[first + i * step][within] : ld_cluster_f32(sum_of(i), 0);
    for (unsigned other = 1; other < ranks; ++other) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (exists(i)) y[i] += ld_cluster_f32(sum_of(i), other);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) y[i] += bias;
    epilogue::activate(params.activation, y);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!exists(i)) break;
      const std::int32_t token = first + i * step;
      if (residual != nullptr)
        y[i] += T::Element::to_f32(ptx::ld_global(residual + token * to.residual_stride + output));
      static_cast<std::uint16_t*>(to.out)[token * to.out_stride + output] =
          static_cast<std::uint16_t>(T::Element::pair(y[i], 0.0f));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    semi24_decode_kernel(const __grid_constant__ Params params, const DecodeOut to) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<DecodeStorage<T>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.values);
    ptx::prefetch_tensor_map(&params.x);
    Stages<T>::init(shared.barriers);
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the shuffle tells ptxas: uniform
  const Stages<T> stages(shared.rings, shared.barriers);
  const unsigned rank = ptx::cluster_rank(), ranks = ptx::cluster_size();
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x / ranks) * T::kRows;
  // This thread block's K tiles. The launch gives each at least one.
  const auto cut = [&](unsigned at) {
    return static_cast<std::int32_t>(static_cast<unsigned>(params.k_tiles) * at / ranks);
  };
  const std::int32_t begin = cut(rank), count = cut(rank + 1) - begin;
  if (warpgroup == T::kConsumers) {
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    if (warp < 2 && ptx::elect_lane()) {
#pragma unroll 1
      for (std::int32_t k = 0; k < count; ++k) {
        if (warp == 0)
          copy_weights<T>(params, stages, static_cast<unsigned>(k), row, begin + k);
        else
          copy_x<T>(params, stages, static_cast<unsigned>(k), 0, begin + k);
      }
    }
    __syncwarp();
    ptx::cluster_sync();
  } else {
    Sums<T> sums;
    multiply_tile<T>(sums, stages, warpgroup, 0, count);
    ptx::named_barrier_sync<1, T::kConsumers * 128>();  // the sums take the place of the rings
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < T::kTokens / 2; ++i) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, within = warp * 16 + i / 2 % 2 * 8 + lane / 4;
      shared.sums[token][within] = sums[0][i];
    }
    ptx::cluster_sync();
    store_share<T>(params, to, shared, row, rank, ranks);
  }
  if (ranks > 1) ptx::cluster_sync();  // the others still read this one's sums
}

}  // namespace sparseloom::kernels::cuda::semi24
