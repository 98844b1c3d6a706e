// Lists of keys from lists of queries, on the device.
#pragma once

#include <cstdint>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda {

/// Lists of `to` from those of `from`, of which there are `sets` (batches times heads that have lists of
/// their own), one after the other in memory. An entry keeps its kPartial.
struct TransposeLists {
  const std::int32_t *from_counts = nullptr, *from_indices = nullptr;
  std::int64_t from_lists = 0, from_capacity = 0;
  std::int32_t *to_counts = nullptr, *to_indices = nullptr;
  std::int64_t to_lists = 0, to_capacity = 0;  // at least from_lists
  std::int64_t sets = 0;
};

/// Queues the work on the stream; returns a cudaError_t. Entries beyond a list's count are not written.
int transpose_lists(const TransposeLists& call, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
