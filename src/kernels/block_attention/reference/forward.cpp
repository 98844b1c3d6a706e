// The reference's forward: the online softmax of FlashAttention over the kept blocks, one query at a time.
#include "kernels/block_attention/reference/tile.h"

namespace sparseloom::kernels::attention {
namespace {

/// The state of one query: out = sum / total, where each term is exp(score - largest).
template <class S>
struct Running {
  S largest = -std::numeric_limits<S>::infinity(), total = 0;
  S sum[kMostDim] = {};

  void add(S (&scores)[kTile], const bool (&kept)[kTile], const Row<S> (&v)[kTile], std::int64_t count,
           std::int64_t dim) {
    S most = largest;
    for (std::int64_t i = 0; i < count; ++i)
      if (kept[i] && scores[i] > most) most = scores[i];
    const S keep = largest == most ? S{1} : std::exp(largest - most);
    total *= keep;
    for (std::int64_t c = 0; c < dim; ++c) sum[c] *= keep;
    for (std::int64_t i = 0; i < count; ++i) {
      if (!kept[i]) continue;
      const S p = std::exp(scores[i] - most);
      total += p;
      for (std::int64_t c = 0; c < dim; ++c) sum[c] += p * v[i][c];
    }
    largest = most;
  }
};

}  // namespace

template <class T>
void forward_block(const Args& args, std::int64_t batch, std::int64_t head, std::int64_t block) {
  using S = Sum<T>;
  const Problem& p = args.problem;
  const Sequence sequence(args, batch);
  const Mask mask = mask_of(args, sequence, batch);
  const std::int64_t kv_head = head / (p.heads / p.kv_heads), dim = p.head_dim;
  const auto q = rows_of<const T>(args, args.q, batch, head, sequence.q_first);
  const auto k = rows_of<const T>(args, args.k, batch, kv_head, sequence.kv_first);
  const auto v = rows_of<const T>(args, args.v, batch, kv_head, sequence.kv_first);
  const auto out = rows_of<T>(args, args.out, batch, head, sequence.q_first);
  const List list = list_of(args.of_queries, batch, head, block);
  const Span queries(block, p.q_block, sequence.queries);
  constexpr std::int64_t kQueries = 16;  // their states stay in L1 beside the tiles of keys
  for (std::int64_t first = queries.begin; first < queries.end; first += kQueries) {
    const std::int64_t rows = std::min(kQueries, queries.end - first);
    Running<S> running[kQueries];
    for (std::int64_t n = 0; n < list.count; ++n) {
      const Entry entry(list.entries[n]);
      const Span keys(entry.block, p.kv_block, sequence.keys);
      for (std::int64_t begin = keys.begin; begin < keys.end; begin += kTile) {
        const std::int64_t count = std::min(kTile, keys.end - begin);
        S columns[kMostDim][kTile];
        Row<S> values[kTile];
        load_transposed<T>(columns, k, begin, count, dim);
        load<T>(values, v, begin, count, dim);
        for (std::int64_t i = 0; i < rows; ++i) {
          bool kept[kTile];
          if (mask(kept, first + i, begin, count, entry.partial) == 0) continue;
          Row<S> query;
          for (std::int64_t c = 0; c < dim; ++c) query[c] = read(q[first + i][c]);
          S scores[kTile];
          products<S>(scores, query, columns, count, dim, static_cast<S>(args.scale));
          running[i].add(scores, kept, values, count, dim);
        }
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      const Running<S>& r = running[i];
      const bool empty = r.total == 0 && r.largest == -std::numeric_limits<S>::infinity();
      const S divisor = empty ? S{1} : r.total;
      for (std::int64_t c = 0; c < dim; ++c) write(out[first + i][c], r.sum[c] / divisor);
      args.lse[lse_at(args, sequence, batch, head, first + i)] =
          static_cast<float>(empty ? r.largest : r.largest + std::log(r.total));
    }
  }
}

template void forward_block<double>(const Args&, std::int64_t, std::int64_t, std::int64_t);
template void forward_block<float>(const Args&, std::int64_t, std::int64_t, std::int64_t);
template void forward_block<core::F16>(const Args&, std::int64_t, std::int64_t, std::int64_t);
template void forward_block<core::Bf16>(const Args&, std::int64_t, std::int64_t, std::int64_t);

}  // namespace sparseloom::kernels::attention
