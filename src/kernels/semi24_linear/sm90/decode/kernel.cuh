// The kernel for few tokens: it streams W through shared memory, so its time is that of W's bytes.
//
// A thread block multiplies a tile of 128 rows of W by all tokens, with the mainloop of forward_wgmma. If
// there are fewer such tiles than multiprocessors, a cluster divides a tile: each of its thread blocks takes
// some of the K tiles, and they add their sums through distributed shared memory, in the order of their
// ranks, so that an output does not depend on timing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/mainloop.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/cluster_rank.cuh"

namespace sparseloom::kernels::cuda::semi24 {

// As many stages as fit in shared memory; those of 8 bits have twice the metadata.
template <class Element, int kTokens>
using DecodeTile = Tile<Element, 1, kTokens,
                        (kTokens == 64          ? 6
                         : kTokens == 32        ? 8
                         : Element::kBytes == 1 ? 9
                                                : 10)>;

struct DecodeOut {
  void* out;
  const void* residual;
  std::int64_t out_stride, residual_stride;  // elements
  std::int32_t tokens;
};

/// `of` from a token on, at most `most` tokens. Outputs and residuals have 16 bits.
__device__ __forceinline__ DecodeOut from_token(const DecodeOut& of, std::int32_t token, std::int32_t most) {
  const auto* const residual = static_cast<const std::uint16_t*>(of.residual);
  return {static_cast<std::uint16_t*>(of.out) + token * of.out_stride,
          residual == nullptr ? nullptr : residual + token * of.residual_stride, of.out_stride,
          of.residual_stride, min(most, of.tokens - token)};
}

template <class T>
struct DecodeStorage {
  // Four floats more than rows, so that a warp's sums use all banks.
  static constexpr int kStride = T::kRows + 4;
  union {
    Rings<T> rings;
    typename T::Element::Sum sums[T::kTokens][kStride];
  };
  Barriers<T> barriers;
  float x_scales[T::Element::kScaled ? T::kTokens : 1];
};

/// The operands of a thread's output beside its sums. They are fetched before the mainloop: after it, each
/// load's latency would add to the kernel's time.
struct OfOutput {
  float bias = 0.0f, w_scale = 1.0f;
};
template <class T, class Storage>
__device__ __forceinline__ OfOutput fetch_of_output(const Params& params, const DecodeOut& to,
                                                    Storage& shared, std::int32_t row) {
  const std::int32_t output = min(row + static_cast<std::int32_t>(threadIdx.x) % T::kRows, params.rows - 1);
  OfOutput of{bias_of<typename T::Element>(params.bias, params.is_f32, output)};
  if constexpr (T::Element::kScaled) {
    of.w_scale = ptx::ld_global(params.w_scale + (params.w_scale_each ? output : 0));
    const auto token = static_cast<std::int32_t>(threadIdx.x);
    if (token < T::kTokens)
      shared.x_scales[token] =
          ptx::ld_global(params.x_scale + (params.x_scale_each ? min(token, to.tokens - 1) : 0));
    __syncwarp();  // wgmma and cluster barriers require converged warps
  }
  return of;
}

/// A sum of thread block `rank` of the cluster.
__device__ __forceinline__ void ld_cluster(float& value, std::uint32_t shared, unsigned rank) {
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(ptx::address_in_cluster(shared, rank)));
}
__device__ __forceinline__ void ld_cluster(std::int32_t& value, std::uint32_t shared, unsigned rank) {
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(ptx::address_in_cluster(shared, rank)));
}

/// Adds the thread blocks' sums for this one's share of the tokens, and writes the outputs. A thread computes
/// one output of kAtOnce tokens at a time: one by one, the latencies of shared memory took longer than
/// streaming a fifth of W.
template <class T, class Storage>
__device__ __forceinline__ void store_share(const Params& params, const DecodeOut& to, const Storage& shared,
                                            const OfOutput& of, std::int32_t row, unsigned rank,
                                            unsigned ranks) {
  constexpr int kThreads = T::kConsumers * 128, kAtOnce = 8;
  static_assert(kThreads % T::kRows == 0, "neighbouring threads write neighbouring outputs");
  const std::int32_t within = static_cast<std::int32_t>(threadIdx.x) % T::kRows, output = row + within;
  if (output >= params.rows) return;
  using Sum = typename T::Element::Sum;
  const auto* const residual = static_cast<const std::uint16_t*>(to.residual);
  // Tokens are distributed one by one, over all threads of all thread blocks that have this output.
  const std::int32_t step = kThreads / T::kRows * static_cast<std::int32_t>(ranks);
  const std::int32_t own = static_cast<std::int32_t>(rank) * (kThreads / T::kRows) +
                           static_cast<std::int32_t>(threadIdx.x) / T::kRows;
  for (std::int32_t first = own; first < to.tokens; first += kAtOnce * step) {
    const auto exists = [&](int i) { return first + i * step < to.tokens; };
    const auto sum_of = [&](int i) { return ptx::shared_address(&shared.sums[first + i * step][within]); };
    Sum sums[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!exists(i)) continue;
      if (ranks == 1)
        sums[i] = shared.sums[first + i * step][within];
      else
        ld_cluster(sums[i], sum_of(i), 0);
    }
    for (unsigned other = 1; other < ranks; ++other) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        Sum more = 0;
        if (exists(i)) ld_cluster(more, sum_of(i), other);
        sums[i] += more;
      }
    }
    float y[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if constexpr (T::Element::kScaled) {
        const float x_scale = shared.x_scales[exists(i) ? first + i * step : 0];
        y[i] = fmaf(static_cast<float>(sums[i]) * x_scale, of.w_scale, of.bias);
      } else {
        y[i] = sums[i] + of.bias;
      }
    }
    epilogue::activate(params.activation, y);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!exists(i)) break;
      const std::int32_t token = first + i * step;
      if constexpr (T::Element::kScaled) {
        if (params.is_f32) {
          params.out_f32[token * to.out_stride + output] = y[i];
          continue;
        }
      }
      if (residual != nullptr)
        y[i] += T::Element::to_f32(ptx::ld_global(residual + token * to.residual_stride + output));
      static_cast<std::uint16_t*>(to.out)[token * to.out_stride + output] =
          static_cast<std::uint16_t>(T::Element::pair(y[i], 0.0f));
    }
  }
}

/// The end of a thread block: the cluster's sums of the tile, and its share of the outputs. All threads call
/// it; those that `consumes` have sums.
template <class T, class Storage>
__device__ __forceinline__ void add_and_store(const Params& params, const DecodeOut& to, Storage& shared,
                                              const OfOutput& of, const Sums<T>& sums, std::int32_t row,
                                              bool consumes, unsigned rank, unsigned ranks) {
  __syncthreads();  // the sums overwrite the rings
  if (consumes) {
    const int lane = threadIdx.x % 32, warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const int first = (warpgroup * T::kBlocks + block) * 64 + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < T::kTokens / 2; ++i)
        shared.sums[i / 4 * 8 + lane % 4 * 2 + i % 2][first + i / 2 % 2 * 8] = sums[block][i];
    }
  }
  ptx::cluster_sync();
  if (consumes) store_share<T>(params, to, shared, of, row, rank, ranks);
  __syncwarp();
  if (ranks > 1) ptx::cluster_sync();  // the others may still read this one's sums
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

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // tells ptxas that it is uniform
  const Stages<T> stages(shared.rings, shared.barriers);
  const unsigned rank = ptx::cluster_rank(), ranks = ptx::cluster_size();
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x / ranks) * T::kRows;
  // This thread block's K tiles. The launch ensures that each has at least one.
  const auto cut = [&](unsigned at) {
    return static_cast<std::int32_t>(static_cast<unsigned>(params.k_tiles) * at / ranks);
  };
  const std::int32_t begin = cut(rank), count = cut(rank + 1) - begin;
  // All warps wait at the same barriers, one by one: synccheck reports cluster barriers that producers and
  // consumers reach in separate branches.
  const bool consumes = warpgroup < T::kConsumers;
  OfOutput of;
  Sums<T> sums;
  if (consumes) {
    of = fetch_of_output<T>(params, to, shared, row);
    multiply_tile<T>(sums, stages, warpgroup, 0, count);
  } else {
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
  }
  add_and_store<T>(params, to, shared, of, sums, row, consumes, rank, ranks);
}

}  // namespace sparseloom::kernels::cuda::semi24
