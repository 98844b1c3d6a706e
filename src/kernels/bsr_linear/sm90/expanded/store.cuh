// The end of a segment: store the outputs, or leave the sums for another share.
//
// If several shares compute a tile, their sums meet in the workspace. Every share but the first leaves its
// sums there at its own start; the first adds them in the order of the shares, so that the bits are the same
// in every run. A warp adds the sums of the same warp of the other thread blocks, so each warp has its own
// flags. The workspace may hold anything when the kernel starts: a flag counts as set if it holds the
// launch's nonce (see wgmma/dw/parts.cuh). A share waits only for thread blocks of lower index (kernel.cuh),
// which the GPU starts first, so the wait ends however few are resident.
#pragma once

#include "kernels/bsr_linear/sm90/expanded/cut.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/flag.cuh"
#include "kernels/shared/ptx/ld.cuh"

namespace sparseloom::kernels::cuda::expanded {

template <class Out>
__device__ __forceinline__ uint4 rounded(const float (&y)[8]) {
  return make_uint4(Out::pair(y[0], y[1]), Out::pair(y[2], y[3]), Out::pair(y[4], y[5]),
                    Out::pair(y[6], y[7]));
}

/// Stores `count` of eight neighbouring outputs, rounded; whole: they can be stored at once.
template <class Out>
__device__ __forceinline__ void store_eight(void* matrix, std::int64_t at, const float (&y)[8], int count,
                                            bool whole) {
  auto* const to = static_cast<std::uint16_t*>(matrix) + at;
  const uint4 bits = rounded<Out>(y);
  if (whole && count == 8) {
    *reinterpret_cast<uint4*>(to) = bits;
    return;
  }
  const std::uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) to[i] = static_cast<std::uint16_t>(pairs[i / 2] >> (i % 2 * 16));
}

/// y += eight neighbouring elements, of which `count` exist.
template <class Out>
__device__ __forceinline__ void add_eight(float (&y)[8], const void* matrix, std::int64_t at, int count) {
  const auto* const from = static_cast<const std::uint16_t*>(matrix) + at;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) y[i] += Out::to_f32(ptx::ld_global(from + i));
}

__device__ __forceinline__ void load_eight(float (&y)[8], const float* shared) {
  const auto* const halves = reinterpret_cast<const float4*>(shared);
  const float4 low = halves[0], high = halves[1];
  y[0] = low.x, y[1] = low.y, y[2] = low.z, y[3] = low.w;
  y[4] = high.x, y[5] = high.y, y[6] = high.z, y[7] = high.w;
}

/// Leaves a warp's sums for the share in which the tile begins.
template <class C>
__device__ __forceinline__ void leave(float4* partials, std::uint64_t* flag, std::uint64_t nonce,
                                      const Sums<C>& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < C::kOwnGroups; ++group) {
#pragma unroll
    for (int i = 0; i < C::kSums; i += 4)
      __stcg(partials + (group * (C::kSums / 4) + i / 4) * 32 + lane,
             make_float4(sums[group][i], sums[group][i + 1], sums[group][i + 2], sums[group][i + 3]));
  }
  __syncwarp();
  if (lane == 0) ptx::st_release_gpu(flag, nonce);
}

/// Adds the sums of the same warp of another share, once they have arrived, and clears the flag.
template <class C>
__device__ __forceinline__ void add_left(const float4* partials, std::uint64_t* flag, std::uint64_t nonce,
                                         Sums<C>& sums) {
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    while (ptx::ld_acquire_gpu(flag) != nonce) {
    }
    *flag = 0;
  }
  __syncwarp();
#pragma unroll
  for (int group = 0; group < C::kOwnGroups; ++group) {
#pragma unroll
    for (int i = 0; i < C::kSums; i += 4) {
      const float4 more = __ldcg(partials + (group * (C::kSums / 4) + i / 4) * 32 + lane);
      sums[group][i] += more.x, sums[group][i + 1] += more.y;
      sums[group][i + 2] += more.z, sums[group][i + 3] += more.w;
    }
  }
}

/// A warp's 16 outputs of a group, transposed in shared memory, 16 tokens at a time, so that a lane has eight
/// outputs of one token.
template <class C>
struct Transposed {
  using Out = C::Out;
  float* staged;
  int first_token, tokens, output, count;  // count: existing outputs of the lane

  __device__ __forceinline__ Transposed(const Params& params, const Cut::Segment& segment, int group,
                                        float* staging)
      : staged(staging), first_token(static_cast<int>(blockIdx.y) * params.tile_tokens) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tokens = min(params.m - first_token, params.tile_tokens);
    output = segment.tile * kTileOutputs + (warp / 4 * C::kOwnGroups + group) * kGroup + warp % 4 * 16 +
             lane % 2 * 8;
    count = min(8, params.out_width - output);
  }

  /// Transposes the sums of the tokens from `from` on.
  __device__ __forceinline__ void write(const float (&sums)[C::kSums], int from) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kStagedTokens / 2; ++i) {
      // Sum 4 j + e: output lane / 4 (+ 8 for e >= 2) of token 8 j + 2 (lane % 4) + e % 2.
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      staged[token * kStagedPitch + lane / 4 + i % 4 / 2 * 8] = sums[from / 2 + i];
    }
    __syncwarp();
  }
  __device__ __forceinline__ void read(float (&y)[8]) const {
    const int lane = threadIdx.x % 32;
    load_eight(y, staged + lane / 2 * kStagedPitch + lane % 2 * 8);
  }
  /// The lane's token, or -1 if it has none.
  __device__ __forceinline__ int token(int from) const {
    const int of_tile = from + static_cast<int>(threadIdx.x) % 32 / 2;
    return of_tile < tokens && count > 0 ? first_token + of_tile : -1;
  }

  __device__ __forceinline__ void store_plain(const Params& params, int from, const float (&bias)[8]) const {
    const int token = this->token(from);
    if (token < 0) return;
    float y[8];
    read(y);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] += bias[i];
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(params.out) + token * params.out_stride + output) =
        rounded<Out>(y);
  }
  __device__ __forceinline__ void store(const Params& params, int from) const {
    const int token = this->token(from);
    if (token < 0) return;
    float y[8];
    read(y);
    if (params.bias != nullptr) add_eight<Out>(y, params.bias, output, count);
    if (params.pre != nullptr)
      store_eight<Out>(params.pre, token * params.pre_stride + output, y, count, params.store_pre_whole);
    if (params.activation != Activation::none) epilogue::activate(params.activation, y);
    if (params.residual != nullptr)
      add_eight<Out>(y, params.residual, token * params.residual_stride + output, count);
    store_eight<Out>(params.out, token * params.out_stride + output, y, count, params.store_whole);
  }
};

/// Ends a segment. All consumer warps call it.
template <class C>
__device__ __forceinline__ void end_segment(const Params& params, const Cut& cut, const Cut::Segment& segment,
                                            int share, Shared<C>& shared, Sums<C>& sums) {
  const int warp = threadIdx.x / 32;
  const auto number = [&](int of_share) {
    return (std::int64_t{blockIdx.y} * params.shares + of_share) * kConsumerWarps + warp;
  };
  if (segment.first > 0) {
    leave<C>(params.partials + number(share) * (C::kFragments * 32), params.flags + number(share),
             params.nonce, sums);
    return;
  }
  cut.for_each_other(segment, share, [&](int other) {
    add_left<C>(params.partials + number(other) * (C::kFragments * 32), params.flags + number(other),
                params.nonce, sums);
  });
  using Out = C::Out;
  if (params.plain) {
#pragma unroll
    for (int group = 0; group < C::kOwnGroups; ++group) {
      const Transposed<C> transposed(params, segment, group, shared.staged[warp]);
      float bias[8] = {};
      if (params.bias != nullptr) add_eight<Out>(bias, params.bias, transposed.output, transposed.count);
#pragma unroll
      for (int from = 0; from < C::kTokens; from += kStagedTokens) {
        if (from >= transposed.tokens) break;
        transposed.write(sums[group], from);
        transposed.store_plain(params, from, bias);
      }
    }
    return;
  }
#pragma unroll
  for (int group = 0; group < C::kOwnGroups; ++group) {
    const Transposed<C> transposed(params, segment, group, shared.staged[warp]);
#pragma unroll 1
    for (int from = 0; from < transposed.tokens; from += kStagedTokens) {
      transposed.write(sums[group], 0);
      transposed.store(params, from);
      // The next sums move to the front, so that the loop has a single copy of the code.
#pragma unroll
      for (int i = kStagedTokens / 2; i < C::kSums; ++i) sums[group][i - kStagedTokens / 2] = sums[group][i];
    }
  }
}

}  // namespace sparseloom::kernels::cuda::expanded
