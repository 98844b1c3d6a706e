// What kernels on the CPU read of a call: the tokens of a sequence, the rows of a tensor, lists and masks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::attention {

using block_attention::Args;
using block_attention::Lists;
using block_attention::Problem;
using block_attention::Tensor;

/// The tokens of one sequence: their numbers, and where they begin in tensors of several lengths (otherwise
/// 0).
struct Sequence {
  std::int64_t q_first = 0, queries = 0, kv_first = 0, keys = 0;

  Sequence(const Args& args, std::int64_t batch)
      : queries(args.problem.q_tokens), keys(args.problem.kv_tokens) {
    if (args.q_starts != nullptr)
      q_first = args.q_starts[batch], queries = args.q_starts[batch + 1] - q_first;
    if (args.kv_starts != nullptr)
      kv_first = args.kv_starts[batch], keys = args.kv_starts[batch + 1] - kv_first;
  }

  /// The keys of a query end here.
  std::int64_t key_end(const Problem& p, std::int64_t query) const {
    return p.causal ? std::clamp<std::int64_t>(query + 1 + keys - queries, 0, keys) : keys;
  }
};

/// A head's rows in memory. T may be const.
template <class T>
struct Rows {
  T* first;
  std::int64_t stride;
  T* operator[](std::int64_t token) const { return first + token * stride; }
};

template <class T>
Rows<T> rows_of(const Args& args, const Tensor& tensor, std::int64_t batch, std::int64_t head,
                std::int64_t first) {
  const std::int64_t from = args.problem.ragged ? 0 : batch * tensor.batch;
  auto* const data = static_cast<T*>(const_cast<void*>(tensor.data));
  return {data + from + head * tensor.head + first * tensor.token, tensor.token};
}

/// The number of a query's entry in lse.
inline std::int64_t lse_at(const Args& args, const Sequence& sequence, std::int64_t batch, std::int64_t head,
                           std::int64_t query) {
  const Problem& p = args.problem;
  return p.ragged ? head * args.all_q_tokens + sequence.q_first + query
                  : (batch * p.heads + head) * p.q_tokens + query;
}

/// The documents of a sequence's tokens, or null.
inline const std::int32_t* documents_of(const Args& args, const std::int32_t* documents, std::int64_t batch,
                                        std::int64_t first, std::int64_t tokens) {
  if (documents == nullptr) return nullptr;
  return documents + (args.problem.ragged ? first : batch * tokens);
}

struct List {
  const std::int32_t* entries;
  std::int64_t count;
};

inline List list_of(const Lists& lists, std::int64_t batch, std::int64_t head, std::int64_t number) {
  const std::int64_t at = batch * lists.batch_stride + head * lists.head_stride + number;
  return {lists.indices + at * lists.capacity, lists.counts[at]};
}

/// An entry of a list.
struct Entry {
  std::int64_t block;
  bool partial;
  explicit Entry(std::int32_t code)
      : block(code & ~Lists::kPartial), partial((code & Lists::kPartial) != 0) {}
};

/// Tokens [begin, end) of a block, cut where the sequence ends.
struct Span {
  std::int64_t begin, end;
  Span(std::int64_t block, std::int64_t side, std::int64_t tokens)
      : begin(std::min(block * side, tokens)), end(std::min(block * side + side, tokens)) {}
};

}  // namespace sparseloom::kernels::attention
