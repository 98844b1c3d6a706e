// Loads of the tensor-core decode kernel: X to shared memory, W to registers. Included by decode_mma.cuh.
#pragma once

#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/stream.cuh"
#include "kernels/cuda/sm80/decode_mma_config.cuh"

namespace sparseloom::kernels::cuda::decode {

struct Range {
  int begin, end;  // groups of k
};

/// One chunk of X to shared memory as [group][token][group bytes]: a warp's fragment loads, 8 tokens x one group, are contiguous.
/// A warp copies 4 groups of 8 / kPieces tokens at a time, whole sectors from every token and all banks of shared memory.
template <class C>
__device__ __forceinline__ void stage(const Params<typename C::Element>& params, Range chunk, char* to) {
  constexpr int kTokensAtOnce = 8 / C::kPieces;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int piece = lane % C::kPieces, token = lane / C::kPieces % kTokensAtOnce, in_four = lane / 8;
#pragma unroll 1
  for (int group = chunk.begin + 4 * warp + in_four; group < chunk.end; group += 4 * warps) {
    const std::int64_t k = std::int64_t{group} * C::kGroup + piece * (16 / C::kSize);
    const std::int64_t left = params.a_cols - k;
    const int count = left <= 0 ? 0 : left < 16 / C::kSize ? static_cast<int>(left) : 16 / C::kSize;
    const auto* from = reinterpret_cast<const char*>(params.a + token * params.a_stride + (count == 0 ? 0 : k));
    char* place = to + ((group - chunk.begin) * C::kTokens + token) * C::kGroupBytes + piece * 16;
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

/// First entry in [begin, end) of an ascending list that is not below `bound`. 32 probes at a time: every round waits for memory.
__device__ __forceinline__ std::int32_t lower_bound(const std::int32_t* list, std::int32_t begin, std::int32_t end, int bound,
                                                    int lane) {
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

/// What lane 4 g + q reads of W, relative to the first of all blocks. See load_group for the rest.
template <class C>
__device__ __forceinline__ std::int64_t lane_offset(unsigned row_bytes, int in_block, int lane) {
  const int g = lane / 4, q = lane % 4;
  if constexpr (C::kForward) return std::int64_t{in_block + g} * row_bytes + q * 4 * C::kPieces;
  if constexpr (C::kSize == 4) return std::int64_t{2 * q} * row_bytes + (in_block + g * C::kTiles) * 4;
  const int row = C::kPieces == 1 ? g : g / 2 * 4 + g % 2;
  return std::int64_t{row} * row_bytes + in_block * 2 + q * 4 * C::kTiles;
}

/// This lane's words of a group.
///   forward        rows g, g + 8, .. of the strip, k words q * kPieces ..: words [tile][piece], what the mma takes
///   dX, TF32       k rows 2q + j of the group, columns kTiles * g ..: words [j][tile], what the mma takes
///   dX, 16 bits    k rows 4 (g / 2) + 2j + g % 2 (one piece: g), columns 2 kTiles * q ..: words [j][tile]; movmatrix turns each
///   into
///                  the rows 4q + 2j, + 1 (2q, + 1) of column 2 kTiles * (g / 2) + 2 tile + g % 2
/// Rejected for the last: ldmatrix.trans, which W would have to go through shared memory for.
template <class C>
__device__ __forceinline__ void load_group(const char* from, unsigned row_bytes, std::uint32_t (&words)[C::kGroupWords]) {
  if constexpr (C::kForward) {
    // Rows of up to 32 bytes hold one group: the step is known.
    const unsigned step = C::kPieces < 4 ? 8u * C::kGroupBytes : 8u * row_bytes;
#pragma unroll
    for (int t = 0; t < C::kTiles; ++t) ptx::ld_global_stream<C::kPieces>(words + t * C::kPieces, from + t * step);
  } else {
    const unsigned step = (C::kSize == 2 ? 2 : 1) * row_bytes;
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) ptx::ld_global_stream<C::kTiles>(words + j * C::kTiles, from + j * step);
  }
}

/// kStepGroups groups of a line on their way to the multiplication.
template <class C>
struct Step {
  std::uint32_t words[C::kStepGroups][C::kGroupWords];
  int at[C::kStepGroups];  // which group of a each meets, ascending; -1 behind the line's last
};

/// A warp's way along the blocks first .. first + count of a line: every `warps`th step from step `warp` on.
/// Forward with blocks of one group: steps follow each other in memory, so two pointers move along.
template <class C>
class OneGroupBlocks {
 public:
  __device__ __forceinline__ OneGroupBlocks(const Params<typename C::Element>& params, const Tiling& tiling, const char* w,
                                            std::int32_t first, int count, int warp)
      : params_(params),
        warps_(tiling.strip_warps),
        w_(w + std::uint64_t{static_cast<unsigned>(first + warp * C::kStepGroups)} * params.block_bytes),
        outer_(params.outer + first + warp * C::kStepGroups),
        left_(count - warp * C::kStepGroups) {}

  __device__ __forceinline__ void load(Step<C>& step) {
    const char* from = w_;
#pragma unroll
    for (int u = 0; u < C::kStepGroups; ++u) {
      step.at[u] = -1;
      if (u < left_) {
        step.at[u] = __ldg(outer_ + u);
        load_group<C>(from, params_.block_row_bytes, step.words[u]);
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
  const char* w_;
  const std::int32_t* outer_;
  int left_;
};

/// Any other walk. Slots are loaded one step ahead of their use.
template <class C>
class AnyBlocks {
 public:
  __device__ __forceinline__ AnyBlocks(const Params<typename C::Element>& params, const Tiling& tiling, const char* w,
                                       std::int32_t first, int count, int warp)
      : params_(params),
        tiling_(tiling),
        w_(w),
        first_(first),
        groups_(count << tiling.group_shift),
        group_(warp * C::kStepGroups) {
    load_slots();
  }

  __device__ __forceinline__ void load(Step<C>& step) {
    const int in_block = (1 << tiling_.group_shift) - 1;
    const unsigned group_bytes = C::kForward ? C::kGroupBytes : C::kGroup * params_.block_row_bytes;
#pragma unroll
    for (int u = 0; u < C::kStepGroups; ++u) {
      const int group = group_ + u;
      step.at[u] = -1;
      if (group >= groups_) continue;
      const std::int32_t i = first_ + (group >> tiling_.group_shift);
      step.at[u] = (__ldg(params_.outer + i) << tiling_.group_shift) + (group & in_block);
      const std::int32_t block = C::kForward ? i : slot_[u];
      load_group<C>(w_ + std::uint64_t{static_cast<unsigned>(block)} * params_.block_bytes + (group & in_block) * group_bytes,
                    params_.block_row_bytes, step.words[u]);
    }
    group_ += tiling_.strip_warps * C::kStepGroups;
    load_slots();
  }

 private:
  __device__ __forceinline__ void load_slots() {
    if constexpr (!C::kForward) {
#pragma unroll
      for (int u = 0; u < C::kStepGroups; ++u)
        if (group_ + u < groups_) slot_[u] = __ldg(params_.slot + first_ + ((group_ + u) >> tiling_.group_shift));
    }
  }

  const Params<typename C::Element>& params_;
  const Tiling& tiling_;
  const char* w_;
  std::int32_t first_;
  int groups_;
  int group_;  // first one of the next step
  std::int32_t slot_[C::kStepGroups] = {};
};

template <class C>
using Blocks = std::conditional_t<(C::kForward && C::kPieces < 4), OneGroupBlocks<C>, AnyBlocks<C>>;

}  // namespace sparseloom::kernels::cuda::decode
