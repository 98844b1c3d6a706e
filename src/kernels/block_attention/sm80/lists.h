// Lists of blocks on a CUDA device: from a map, and of the other side. One launch each; nothing is read by
// the host, so that both may be part of a CUDA graph whose map or lists change.
#pragma once

#include <cstdint>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

/// counts [sets][lists], indices [sets][lists][capacity]; a set belongs to a batch and a head.
struct ListSets {
  const std::int32_t *counts, *indices;
  std::int64_t sets, lists, capacity;
};
struct WrittenSets {
  std::int32_t *counts, *indices;
  std::int64_t sets, lists, capacity;
};

/// sparseloom::lists_of_map. Returns a cudaError_t.
int lists_of_map(const block_attention::BlockMap& map, std::int32_t* counts, std::int32_t* indices,
                 void* stream) noexcept;

/// Of each block that lists name, the lists that name it, in ascending order, with kPartial where the entry
/// has it. Entries of `from` must ascend; those from to.lists on are left out. to.capacity >= from.lists.
/// Returns a cudaError_t.
int transpose_lists(const ListSets& from, const WrittenSets& to, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda::attention
