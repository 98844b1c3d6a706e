// The reference's backward, from out, dout and lse:
//
//   p = exp(scale q k^T - lse),  ds = p (dout v^T - sum(dout out) + dlse)
//   dv = p^T dout,  dk = scale ds^T q,  dq = scale ds k
//
// A block of queries sums its dq and a block of keys its dk and dv, so no sum depends on threads.
#include "kernels/block_attention/reference/tile.h"

namespace sparseloom::kernels::attention {
namespace {

/// One query of a head with what its gradients need.
template <class T>
struct Query {
  using S = Sum<T>;
  Row<S> q, dout;
  S lse, shift;  // ds = p (dp - shift)

  Query(const Args& args, const Sequence& sequence, std::int64_t batch, std::int64_t head,
        std::int64_t query) {
    const auto q_rows = rows_of<const T>(args, args.q, batch, head, sequence.q_first),
               out = rows_of<const T>(args, args.out, batch, head, sequence.q_first),
               d = rows_of<const T>(args, args.dout, batch, head, sequence.q_first);
    const std::int64_t at = lse_at(args, sequence, batch, head, query);
    lse = static_cast<S>(args.lse[at]);
    shift = args.dlse == nullptr ? S{0} : -static_cast<S>(args.dlse[at]);
    for (std::int64_t c = 0; c < args.problem.head_dim; ++c) {
      q[c] = read(q_rows[query][c]), dout[c] = read(d[query][c]);
      shift += dout[c] * read(out[query][c]);
    }
  }

  /// p and ds against a tile of keys; zero where a key is not kept.
  void against(S (&p)[kTile], S (&ds)[kTile], const bool (&kept)[kTile], const S (&k)[kMostDim][kTile],
               const S (&v)[kMostDim][kTile], std::int64_t count, std::int64_t dim, S scale) const {
    products<S>(p, q, k, count, dim, scale);
    products<S>(ds, dout, v, count, dim, S{1});
    for (std::int64_t i = 0; i < count; ++i) {
      p[i] = kept[i] ? std::exp(p[i] - lse) : S{0};
      ds[i] = kept[i] ? p[i] * (ds[i] - shift) : S{0};
    }
  }
};

/// to += factor x.
template <class S>
void add(S* to, S factor, const S* x, std::int64_t dim) {
  for (std::int64_t c = 0; c < dim; ++c) to[c] += factor * x[c];
}

template <class T>
void store(const Rows<T>& to, const Row<Sum<T>>* from, std::int64_t begin, std::int64_t count,
           std::int64_t dim, Sum<T> scale) {
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < dim; ++c) write(to[begin + i][c], from[i][c] * scale);
}

}  // namespace

template <class T>
void gradient_of_queries(const Args& args, std::int64_t batch, std::int64_t head, std::int64_t block) {
  using S = Sum<T>;
  const Problem& p = args.problem;
  const Sequence sequence(args, batch);
  const Mask mask = mask_of(args, sequence, batch);
  const std::int64_t kv_head = head / (p.heads / p.kv_heads), dim = p.head_dim;
  const auto k = rows_of<const T>(args, args.k, batch, kv_head, sequence.kv_first);
  const auto v = rows_of<const T>(args, args.v, batch, kv_head, sequence.kv_first);
  const List list = list_of(args.of_queries, batch, head, block);
  const Span queries(block, p.q_block, sequence.queries);
  const auto scale = static_cast<S>(args.scale);
  for (std::int64_t first = queries.begin; first < queries.end; first += kTile) {
    const std::int64_t rows = std::min(kTile, queries.end - first);
    Row<S> dq[kTile] = {};
    for (std::int64_t n = 0; n < list.count; ++n) {
      const Entry entry(list.entries[n]);
      const Span keys(entry.block, p.kv_block, sequence.keys);
      for (std::int64_t begin = keys.begin; begin < keys.end; begin += kTile) {
        const std::int64_t count = std::min(kTile, keys.end - begin);
        S k_columns[kMostDim][kTile], v_columns[kMostDim][kTile];
        Row<S> k_rows[kTile];
        load_transposed<T>(k_columns, k, begin, count, dim);
        load_transposed<T>(v_columns, v, begin, count, dim);
        load<T>(k_rows, k, begin, count, dim);
        for (std::int64_t i = 0; i < rows; ++i) {
          bool kept[kTile];
          if (mask(kept, first + i, begin, count, entry.partial) == 0) continue;
          const Query<T> query(args, sequence, batch, head, first + i);
          S probability[kTile], ds[kTile];
          query.against(probability, ds, kept, k_columns, v_columns, count, dim, scale);
          for (std::int64_t j = 0; j < count; ++j)
            if (kept[j]) add(dq[i], ds[j], k_rows[j], dim);
        }
      }
    }
    store(rows_of<T>(args, args.dq, batch, head, sequence.q_first), dq, first, rows, dim, scale);
  }
}

template <class T>
void gradient_of_keys(const Args& args, std::int64_t batch, std::int64_t kv_head, std::int64_t block) {
  using S = Sum<T>;
  const Problem& p = args.problem;
  const Sequence sequence(args, batch);
  const Mask mask = mask_of(args, sequence, batch);
  const std::int64_t group = p.heads / p.kv_heads, dim = p.head_dim;
  const auto k = rows_of<const T>(args, args.k, batch, kv_head, sequence.kv_first);
  const auto v = rows_of<const T>(args, args.v, batch, kv_head, sequence.kv_first);
  const auto scale = static_cast<S>(args.scale);
  const Span keys(block, p.kv_block, sequence.keys);
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kTile) {
    const std::int64_t count = std::min(kTile, keys.end - begin);
    S k_columns[kMostDim][kTile], v_columns[kMostDim][kTile];
    Row<S> dk[kTile] = {}, dv[kTile] = {};
    load_transposed<T>(k_columns, k, begin, count, dim);
    load_transposed<T>(v_columns, v, begin, count, dim);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const List list = list_of(args.of_keys, batch, head, block);
      for (std::int64_t n = 0; n < list.count; ++n) {
        const Entry entry(list.entries[n]);
        const Span queries(entry.block, p.q_block, sequence.queries);
        for (std::int64_t at = queries.begin; at < queries.end; ++at) {
          bool kept[kTile];
          if (mask(kept, at, begin, count, entry.partial) == 0) continue;
          const Query<T> query(args, sequence, batch, head, at);
          S probability[kTile], ds[kTile];
          query.against(probability, ds, kept, k_columns, v_columns, count, dim, scale);
          for (std::int64_t j = 0; j < count; ++j) {
            if (!kept[j]) continue;
            add(dv[j], probability[j], query.dout, dim);
            add(dk[j], ds[j], query.q, dim);
          }
        }
      }
    }
    store(rows_of<T>(args, args.dk, batch, kv_head, sequence.kv_first), dk, begin, count, dim, scale);
    store(rows_of<T>(args, args.dv, batch, kv_head, sequence.kv_first), dv, begin, count, dim, S{1});
  }
}

#define SPARSELOOM_GRADIENTS(T)                                                                \
  template void gradient_of_queries<T>(const Args&, std::int64_t, std::int64_t, std::int64_t); \
  template void gradient_of_keys<T>(const Args&, std::int64_t, std::int64_t, std::int64_t);
SPARSELOOM_GRADIENTS(double)
SPARSELOOM_GRADIENTS(float)
SPARSELOOM_GRADIENTS(core::F16)
SPARSELOOM_GRADIENTS(core::Bf16)

}  // namespace sparseloom::kernels::attention
