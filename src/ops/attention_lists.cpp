#include "ops/attention_lists.h"

#include <string>

#include "core/check.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::ops {
namespace {

using block_attention::Lists;

[[noreturn]] void refuse(const char* op, const char* name, std::int64_t list, const std::string& expected,
                         const std::string& actual) {
  core::fail(op, "lists of " + std::string(name) + " with " + expected,
             actual + " in list " + std::to_string(list), "make them with sparseloom.AttentionPattern");
}

}  // namespace

void require_valid_lists(const char* op, const char* name, const Lists& lists, std::int64_t batch,
                         std::int64_t heads, std::int64_t blocks, bool documents) {
  if (lists.lists == 0) return;  // however many heads there are
  const std::int64_t batches = lists.batch_stride == 0 ? 1 : batch,
                     all_heads = lists.head_stride == 0 ? 1 : heads;
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t h = 0; h < all_heads; ++h)
      for (std::int64_t i = 0; i < lists.lists; ++i) {
        const std::int64_t at = b * lists.batch_stride + h * lists.head_stride + i;
        const std::int64_t count = lists.counts[at];
        if (count < 0 || count > lists.capacity)
          refuse(op, name, i, "0 to " + std::to_string(lists.capacity) + " entries",
                 "a count of " + std::to_string(count));
        std::int64_t before = -1;
        for (std::int64_t n = 0; n < count; ++n) {
          const std::int32_t code = lists.indices[at * lists.capacity + n];
          const std::int64_t block = code & ~Lists::kPartial;
          if (code < 0 || block >= blocks)
            refuse(op, name, i, "blocks 0 to " + std::to_string(blocks - 1), std::to_string(code));
          if (block <= before)
            refuse(op, name, i, "ascending blocks",
                   std::to_string(block) + " after " + std::to_string(before));
          if (code != block && !documents)
            refuse(op, name, i, "no partial blocks, since no documents are given",
                   "partial block " + std::to_string(block));
          before = block;
        }
      }
}

void lists_on_host(const block_attention::BlockMap& map, std::int32_t* counts, std::int32_t* indices,
                   const Executor& executor) {
  const std::int64_t lists = map.batches * map.heads * map.rows;
  runtime::parallel_for(executor, lists, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t list = begin; list < end; ++list) {
      const std::int64_t row = list % map.rows, head = list / map.rows % map.heads,
                         batch = list / map.rows / map.heads;
      const std::uint8_t* const codes =
          map.codes + batch * map.strides[0] + head * map.strides[1] + row * map.strides[2];
      std::int32_t* to = indices + list * map.columns;
      for (std::int64_t column = 0; column < map.columns; ++column)
        if (const std::uint8_t code = codes[column * map.strides[3]]; code != 0)
          *to++ = static_cast<std::int32_t>(column) | (code == 2 ? Lists::kPartial : 0);
      counts[list] = static_cast<std::int32_t>(to - (indices + list * map.columns));
    }
  });
}

void transpose_on_host(const Lists& lists, std::int64_t sets, std::int64_t key_blocks, std::int32_t* counts,
                       std::int32_t* indices) {
  if (key_blocks == 0) return;  // however many sets there are
  for (std::int64_t i = 0; i < sets * key_blocks; ++i) counts[i] = 0;
  for (std::int64_t set = 0; set < sets; ++set)
    for (std::int64_t i = 0; i < lists.lists; ++i) {
      const std::int64_t at = set * lists.lists + i;
      for (std::int64_t n = 0; n < lists.counts[at]; ++n) {
        const std::int32_t code = lists.indices[at * lists.capacity + n], partial = code & Lists::kPartial;
        const std::int64_t to = set * key_blocks + (code - partial);
        indices[to * lists.lists + counts[to]++] = static_cast<std::int32_t>(i) | partial;
      }
    }
}

}  // namespace sparseloom::ops
