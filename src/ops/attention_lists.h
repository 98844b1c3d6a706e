// Checks of the lists of an attention in host memory, and their transposition there.
#pragma once

#include <cstdint>

#include "sparseloom/block_attention.h"
#include "sparseloom/executor.h"

namespace sparseloom::ops {

/// Throws Error unless each of the `sets` x lists lists has at most `capacity` entries, ascending and below
/// `blocks`, and none with kPartial unless `documents` says so. `name`: "queries" or "keys".
void require_valid_lists(const char* op, const char* name, const block_attention::Lists& lists,
                         std::int64_t batch, std::int64_t heads, std::int64_t blocks, bool documents);

/// lists_of_map in host memory.
void lists_on_host(const block_attention::BlockMap& map, std::int32_t* counts, std::int32_t* indices,
                   const Executor& executor);

/// transpose_lists in host memory.
void transpose_on_host(const block_attention::Lists& lists, std::int64_t sets, std::int64_t key_blocks,
                       std::int32_t* counts, std::int32_t* indices);

}  // namespace sparseloom::ops
