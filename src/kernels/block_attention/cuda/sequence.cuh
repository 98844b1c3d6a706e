// What a thread block knows of its sequence, and the list that it walks over.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

using block_attention::Lists;

/// The part of Args that kernels read. Strides are in elements.
struct Common {
  Lists lists;
  const std::int32_t *q_starts, *kv_starts;
  const std::int32_t *q_documents, *kv_documents;
  std::int32_t q_tokens, kv_tokens;          // of every sequence, without starts
  std::int32_t all_q_tokens, all_kv_tokens;  // one tensor's; with starts, of all sequences
  std::int32_t heads, heads_per_kv;
  float scale;
  bool causal;
};

/// The lengths of sequence b, and its first tokens in tensors whose sequences follow each other (otherwise
/// 0).
struct Sequence {
  std::int32_t q_first = 0, kv_first = 0, q_tokens, kv_tokens;
  std::int32_t batch;  // the coordinate of tensors: 0 with starts
  std::int32_t shift;  // query i sees keys up to i + shift, if causal

  __device__ __forceinline__ Sequence(const Common& common, int b) : batch(b) {
    q_tokens = common.q_tokens;
    kv_tokens = common.kv_tokens;
    if (common.q_starts != nullptr) {
      q_first = common.q_starts[b];
      q_tokens = common.q_starts[b + 1] - q_first;
      kv_first = common.kv_starts[b];
      kv_tokens = common.kv_starts[b + 1] - kv_first;
      batch = 0;
    }
    shift = kv_tokens - q_tokens;
  }
};

/// Stats of queries lie by 64, where each sequence begins a unit of its own: the number of its first.
__device__ __forceinline__ int first_place(const Sequence& sequence, int batch, bool ragged) {
  return ragged ? sequence.q_first / 64 + batch : 0;
}

/// The list of block `which`, for a batch and a head.
__device__ __forceinline__ std::int64_t list_of(const Lists& lists, int batch, int head, int which) {
  return batch * lists.batch_stride + head * lists.head_stride + which;
}

/// How many of the first `count` entries, which ascend, are blocks below `end`. All lanes of a warp call it.
__device__ __forceinline__ int entries_below(const std::int32_t* entries, int count, int end) {
  int below = 0;
  for (int first = 0; first < count; first += 32) {
    const int i = first + static_cast<int>(threadIdx.x % 32);
    const bool kept = i < count && (entries[i] & ~Lists::kPartial) < end;
    below += __popc(__ballot_sync(0xffffffff, kept));
  }
  return below;
}

}  // namespace sparseloom::kernels::cuda::attention
