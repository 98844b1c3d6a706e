// Loads of the staged decode kernel: X to shared memory, W to registers. Included by kernel.cuh.
#pragma once

#include "kernels/bsr_linear/sm80/decode_staged/config.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/stream.cuh"

namespace sparseloom::kernels::cuda::decode::staged {

struct Range {
  int begin, end;  // groups of k
};

/// Copies one chunk of X to shared memory as [group][token][group bytes], so that a warp's fragment loads, 8
/// tokens x one group, are contiguous. A warp copies 4 groups of 8 / kLaneWords tokens at a time: whole
/// sectors of every token, and all banks of shared memory.
template <class C>
__device__ __forceinline__ void stage(const Params<typename C::Element>& params, Range chunk, char* to) {
  constexpr int kTokensAtOnce = 8 / C::kLaneWords;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int vector = lane % C::kLaneWords, token = lane / C::kLaneWords % kTokensAtOnce, in_four = lane / 8;
#pragma unroll 1
  for (int group = chunk.begin + 4 * warp + in_four; group < chunk.end; group += 4 * warps) {
    const std::int64_t k = std::int64_t{group} * C::kGroup + vector * (16 / C::kSize);
    const std::int64_t left = params.a_cols - k;
    const int count = left <= 0 ? 0 : left < 16 / C::kSize ? static_cast<int>(left) : 16 / C::kSize;
    const auto* from =
        reinterpret_cast<const char*>(params.a + token * params.a_stride + (count == 0 ? 0 : k));
    char* place = to + ((group - chunk.begin) * C::kTokens + token) * C::kGroupBytes + vector * 16;
    const std::int64_t step = kTokensAtOnce * params.a_stride * C::kSize;
    if (params.a_aligned) {
#pragma unroll 1
      for (int t = token; t < params.m; t += kTokensAtOnce) {
        ptx::cp_async_cg(ptx::shared_address(place), from, count * C::kSize);
        from += step;
        place += kTokensAtOnce * C::kGroupBytes;
      }
    } else {
#pragma unroll 1
      for (int t = token; t < params.m; t += kTokensAtOnce) {
        *reinterpret_cast<uint4*>(place) = read_elements<typename C::Element>(from, count);
        from += step;
        place += kTokensAtOnce * C::kGroupBytes;
      }
    }
  }
}

/// First entry in [begin, end) of an ascending list that is not below `bound`. It makes 32 probes at a time,
/// since every round waits for memory.
__device__ __forceinline__ std::int32_t lower_bound(const std::int32_t* list, std::int32_t begin,
                                                    std::int32_t end, int bound, int lane) {
  while (begin < end) {
    const int step = (end - begin + 31) / 32;
    const std::int32_t probe = begin + lane * step;
    const int below = __popc(__ballot_sync(~0u, probe < end && __ldg(list + probe) < bound));
    if (below == 0) break;
    end = min(end, begin + below * step);
    begin += (below - 1) * step + 1;
  }
  return begin;
}

/// kStepGroups groups of a block row, loaded ahead of the multiplication.
template <class C>
struct Step {
  std::uint32_t words[C::kStepGroups]
                     [C::kGroupWords];  // operands of rows g, g + 8 of the strip, [tile][vector]
  int at[C::kStepGroups];  // the group of a that each one multiplies, ascending; -1 past the last
};

/// A warp's walk over the blocks first .. first + count of a block row: every `warps`th step, from step
/// `warp` on. Steps are contiguous in memory, so two pointers advance.
template <class C>
class Blocks {
 public:
  /// in_block: the strip's first row inside its blocks. Lane 4 g + q reads words q * kLaneWords .. of rows g
  /// and g + 8.
  __device__ __forceinline__ Blocks(const Params<typename C::Element>& params, const Tiling& tiling,
                                    int in_block, int lane, std::int32_t first, int count, int warp)
      : params_(params), warps_(tiling.strip_warps), left_(count - warp * C::kStepGroups) {
    const std::int32_t start = first + warp * C::kStepGroups;
    outer_ = params.outer + start;
    w_ = reinterpret_cast<const char*>(params.values) +
         std::uint64_t{static_cast<unsigned>(start)} * params.block_bytes +
         (in_block + lane / 4) * C::kGroupBytes + lane % 4 * 4 * C::kLaneWords;
  }

  __device__ __forceinline__ void load(Step<C>& step) {
    const char* from = w_;
#pragma unroll
    for (int u = 0; u < C::kStepGroups; ++u) {
      step.at[u] = -1;
      if (u < left_) {
        step.at[u] = __ldg(outer_ + u);
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t)
          ptx::ld_global_stream<C::kLaneWords>(step.words[u] + t * C::kLaneWords,
                                               from + t * 8 * C::kGroupBytes, w_policy_);
      }
      from += params_.block_bytes;
    }
    const int blocks = warps_ * C::kStepGroups;
    w_ += std::uint64_t{static_cast<unsigned>(blocks)} * params_.block_bytes;
    outer_ += blocks;
    left_ -= blocks;
  }

 private:
  const Params<typename C::Element>& params_;
  const int& warps_;
  const ptx::L2Policy w_policy_ = ptx::evict_first();
  const char* w_;
  const std::int32_t* outer_;
  int left_;
};

}  // namespace sparseloom::kernels::cuda::decode::staged
