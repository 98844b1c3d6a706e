// The softmax of scores in the registers of sums, of wgmma and of mma.sync alike: lane t of the warps w, four
// of which make a group of 64 rows, has the rows 16 w + t / 4 and 8 further, and of each 8 columns 2 (t % 4)
// and the next.
#pragma once

#include <cuda_runtime.h>

#include "kernels/block_attention/cuda/sequence.cuh"
#include "kernels/shared/ptx/math.cuh"

namespace sparseloom::kernels::cuda::attention {

inline constexpr float kLog2E = 1.4426950408889634f;

/// The running maximum of a thread's two rows, of all lanes; and its own part of their sums.
struct Running {
  float top[2], sum[2];
};

/// Which keys the queries of a thread keep.
struct Mask {
  std::int32_t rows[2];       // the queries, counted in their sequence
  std::int32_t warp_row;      // the first query of the warpgroup
  std::int32_t documents[2];  // of the queries
  __device__ __forceinline__ Mask(const Common& common, const Sequence& sequence, int batch, int first)
      : documents{0, 0} {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    warp_row = first;
    rows[0] = first + warp * 16 + lane / 4;
    rows[1] = rows[0] + 8;
    if (common.q_documents != nullptr) {
      const std::int64_t base =
          sequence.q_first + (common.q_starts != nullptr ? 0 : std::int64_t{batch} * common.q_tokens);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (rows[i] < sequence.q_tokens) documents[i] = common.q_documents[base + rows[i]];
    }
  }

  /// Sets the scores of a unit's keys that are not kept to -infinity. `key`: the unit's first, and kPartial.
  __device__ __forceinline__ void apply(float* scores, std::int32_t key, const Common& common,
                                        const Sequence& sequence, int batch) const {
    const bool partial = (key & Lists::kPartial) != 0 && common.kv_documents != nullptr;
    key &= ~Lists::kPartial;
    const bool ends = key + 64 > sequence.kv_tokens;
    const bool crosses = common.causal && key + 63 > warp_row + sequence.shift;
    if (!(ends || crosses || partial)) return;
    const int column = key + static_cast<int>(threadIdx.x % 4) * 2;
    std::int32_t limits[2];  // keys from here on are not kept
#pragma unroll
    for (int i = 0; i < 2; ++i)
      limits[i] = common.causal ? min(sequence.kv_tokens, rows[i] + sequence.shift + 1) : sequence.kv_tokens;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + 8 * j + i % 2 >= limits[i / 2]) scores[4 * j + i] = -INFINITY;
    if (!partial) return;
    const std::int32_t* of_keys = common.kv_documents + sequence.kv_first +
                                  (common.q_starts != nullptr ? 0 : std::int64_t{batch} * common.kv_tokens);
#pragma unroll 1
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + 8 * j + i;
        const std::int32_t document = at < sequence.kv_tokens ? of_keys[at] : 0;
#pragma unroll
        for (int row = 0; row < 2; ++row)
          if (document != documents[row]) {
            // indexed by constants alone, so that scores stay in registers
#pragma unroll
            for (int at_j = 0; at_j < 8; ++at_j)
              if (at_j == j) scores[4 * at_j + 2 * row + i] = -INFINITY;
          }
      }
  }
};

/// Scores become exp(scale (score - top)), for the new top. Returns by `factors` what earlier sums and
/// outputs are multiplied by. With scale_log2 = scale log2(e), which must be positive, a power of 2 is one
/// FMA and one ex2. A row without keys has the top -infinity, and 0 stands in for it.
template <int kSums>
__device__ __forceinline__ void exponentiate(float (&scores)[kSums], Running& running, float (&factors)[2],
                                             float scale_log2) {
  float top[2] = {running.top[0], running.top[1]};
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    top[0] = fmaxf(top[0], fmaxf(scores[4 * j], scores[4 * j + 1]));
    top[1] = fmaxf(top[1], fmaxf(scores[4 * j + 2], scores[4 * j + 3]));
  }
  float subtracted[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffff, top[i], 1));
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffff, top[i], 2));
    const float used = top[i] == -INFINITY ? 0.f : top[i];
    subtracted[i] = used * scale_log2;
    factors[i] = ptx::ex2_approx(running.top[i] * scale_log2 - subtracted[i]);
    running.top[i] = top[i];
    running.sum[i] *= factors[i];
  }
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[4 * j + i];
      score = ptx::ex2_approx(score * scale_log2 - subtracted[i / 2]);
      running.sum[i / 2] += score;
    }
}

}  // namespace sparseloom::kernels::cuda::attention
