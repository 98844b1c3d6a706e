// Loads of the decode kernels: finds the block of a vector of k, and copies W and X into a stage. Included by
// decode/kernel.cuh.
#pragma once

#include <type_traits>

#include "kernels/bsr_linear/sm80/decode/config.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"

namespace sparseloom::kernels::cuda::decode {

/// The outputs of a thread block, and the list of blocks that they sum over.
struct Strip {
  std::int64_t column;  // first output in out
  int in_block;         // first output inside its blocks
  std::int32_t first;   // first block
  unsigned length;      // k of all its blocks together
};

/// Forward: prefetches this thread block's entries of the index into L2, guessing their position as if block
/// rows were equally long. W is not prefetched: bringing it to L2 before the earlier kernels have ended
/// slowed products down, in proportion to the bytes (measured). Called by one warp.
template <class C>
__device__ __forceinline__ void prefetch_index(const Params<typename C::Element>& params, unsigned block,
                                               int lane) {
  // Words of a cache line of 128 bytes.
  constexpr int kCacheLineWords = 32;
  const unsigned block_row = block >> params.strips_shift;
  const auto first = static_cast<std::int64_t>(std::uint64_t{block_row} *
                                               static_cast<unsigned>(params.blocks) / params.block_rows);
  const std::int64_t last = min(first + params.blocks / params.block_rows, std::int64_t{params.blocks} - 1);
  if (lane == 0) ptx::prefetch_line_l2(params.first + block_row);
  for (std::int64_t i = first + lane * kCacheLineWords; i <= last; i += 32 * kCacheLineWords)
    ptx::prefetch_line_l2(params.outer + i);
}

template <class C>
__device__ __forceinline__ Strip strip_of(const Params<typename C::Element>& params, unsigned block) {
  const unsigned index = block >> params.strips_shift;
  Strip strip;
  strip.in_block = static_cast<int>(block & ((1u << params.strips_shift) - 1)) * C::kStrip;
  strip.column = std::int64_t{index} * params.out_side + strip.in_block;
  strip.first = ptx::ld_global(params.first + index);
  strip.length = static_cast<unsigned>(ptx::ld_global(params.first + index + 1) - strip.first)
                 << params.k_shift;
  return strip;
}

/// The lane's offsets, in bytes, into W and X. Kept in registers so that a copy takes few instructions: with
/// strips of 32 and 32 tokens, a multiprocessor must process a chunk every 107 cycles to keep up with DRAM.
struct Bases {
  const char* w;
  const char* x;
  ptx::L2Policy w_policy;  // W is read once: L2 should keep X
};

template <class C>
__device__ __forceinline__ Bases bases_of(const Params<typename C::Element>& params, const Strip& strip,
                                          int lane) {
  constexpr int kSize = sizeof(typename C::Element);
  Bases bases;
  bases.w = reinterpret_cast<const char*>(params.values);
  if constexpr (std::is_same_v<typename C::Walk, Forward>) {
    bases.w += (strip.in_block + lane / 4) * params.row_bytes;
  } else {
    bases.w += (lane / C::kVectorsAcross % C::kVector) * params.row_bytes + strip.in_block * kSize +
               lane % C::kVectorsAcross * 16;
  }
  bases.x = reinterpret_cast<const char*>(params.a + lane / 4 * params.a_stride);
  bases.w_policy = ptx::evict_first();
  return bases;
}

/// The source of the 16-byte vector q = lane % 4 of a chunk, which this lane copies.
struct Vector {
  bool present = false;  // false past the last block: zeros. Known before `outer` arrives
  std::int32_t outer = 0;
  std::int32_t slot = 0;
  unsigned inner = 0;  // k inside the block
};

template <class C>
__device__ __forceinline__ Vector locate(const Params<typename C::Element>& params, const Strip& strip,
                                         int chunk, int lane) {
  const unsigned position = static_cast<unsigned>(chunk) * C::kChunk + lane % 4 * C::kVector;
  Vector vector;
  if (position >= strip.length) return vector;
  vector.present = true;
  const std::int32_t i = strip.first + static_cast<std::int32_t>(position >> params.k_shift);
  vector.outer = ptx::ld_global(params.outer + i);
  vector.slot = i;
  if constexpr (std::is_same_v<typename C::Walk, Dx>) vector.slot = ptx::ld_global(params.slot + i);
  vector.inner = position & ((1u << params.k_shift) - 1);
  return vector;
}

/// Copies a vector of W, or zeros.
template <class C>
__device__ __forceinline__ void copy_w(uint4& to, const char* from, bool present, bool aligned,
                                       ptx::L2Policy policy) {
  if (aligned) {
    ptx::cp_async_cg(ptx::shared_address(&to), from, present ? 16 : 0, policy);
  } else {
    to = read_elements<typename C::Element>(from, present ? C::kVector : 0);
  }
}

template <class C>
__device__ __forceinline__ void load_w(Forward, const Params<typename C::Element>& params, const Bases& bases,
                                       const Vector& vector, Stage<C>& stage, int lane, bool aligned) {
  const char* from = bases.w + std::uint64_t{static_cast<unsigned>(vector.slot)} * params.block_bytes +
                     vector.inner * sizeof(typename C::Element);
  const unsigned step = 8 * params.row_bytes;
#pragma unroll
  for (int t = 0; t < C::kOutputTiles; ++t)
    copy_w<C>(stage.w[lane + 32 * t], from + t * step, vector.present, aligned, bases.w_policy);
}

template <class C>
__device__ __forceinline__ void load_w(Dx, const Params<typename C::Element>& params, const Bases& bases,
                                       const Vector& vector, Stage<C>& stage, int lane, bool aligned) {
  using Element = typename C::Element;
  constexpr int kPiecesPerGroup = 8 / C::kVector;
  constexpr std::int64_t kAbsent = -16;  // not -1: the address stays aligned though nothing is read
  const std::int64_t offset =
      !vector.present
          ? kAbsent
          : static_cast<std::int64_t>(std::uint64_t{static_cast<unsigned>(vector.slot)} * params.block_bytes +
                                      vector.inner * params.row_bytes);
#pragma unroll
  for (int t = 0; t < C::kOutputTiles; ++t) {
    const int k = (lane + 32 * t) / C::kVectorsAcross, across = lane % C::kVectorsAcross;
    const std::int64_t located =
        __shfl_sync(~0u, offset, k / C::kVector);  // from the lane whose vector has this k
    const int group = dx_group<Element, C::kStrip>(dx_row<Element>(k), across / kPiecesPerGroup);
    copy_w<C>(stage.w[group * kPiecesPerGroup + across % kPiecesPerGroup], bases.w + located, located >= 0,
              aligned, bases.w_policy);
  }
}

/// Loads one chunk of W for kStrip outputs.
template <class C>
__device__ __forceinline__ void load_w(const Params<typename C::Element>& params, const Bases& bases,
                                       const Vector& vector, Stage<C>& stage, int lane) {
  if (params.values_aligned) {
    load_w<C>(typename C::Walk{}, params, bases, vector, stage, lane, true);
  } else {
    load_w<C>(typename C::Walk{}, params, bases, vector, stage, lane, false);
  }
}

/// Loads one chunk of X: zeros for absent tokens and past a's last column.
template <class C>
__device__ __forceinline__ void load_x(const Params<typename C::Element>& params, const Bases& bases,
                                       const Vector& vector, Stage<C>& stage, int lane) {
  constexpr int kSize = sizeof(typename C::Element);
  int count = vector.present ? C::kVector : 0;
  if (vector.present && vector.outer >= params.whole_outer) {  // a ragged last block
    const std::int64_t left = params.a_cols - (std::int64_t{vector.outer} << params.k_shift) - vector.inner;
    count = left <= 0 ? 0 : left < C::kVector ? static_cast<int>(left) : C::kVector;
  }
  const char* from = bases.x;
  if (count > 0)
    from +=
        std::uint64_t{static_cast<unsigned>(vector.outer)} * (kSize << params.k_shift) + vector.inner * kSize;
  const std::int64_t step = 8 * kSize * params.a_stride;
  if (params.a_aligned && count % C::kVector == 0) {
#pragma unroll
    for (int t = 0; t < 2 * C::kTokenTiles; ++t)
      ptx::cp_async_cg(ptx::shared_address(&stage.x[lane + 32 * t]), from + t * step,
                       count > 0 && lane / 4 + 8 * t < params.m ? 16 : 0);
  } else {
#pragma unroll 1
    for (int t = 0; t < 2 * C::kTokenTiles; ++t)
      stage.x[lane + 32 * t] =
          read_elements<typename C::Element>(from + t * step, lane / 4 + 8 * t < params.m ? count : 0);
  }
}

}  // namespace sparseloom::kernels::cuda::decode
