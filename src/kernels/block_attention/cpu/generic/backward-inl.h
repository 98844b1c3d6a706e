// The gradients of one tile of queries, and of one tile of keys. Included after forward-inl.h, whose register
// tiles compute all seven products:
//
//   of queries, a lane each: scores and dout v^T by `score`, dq += ds k by `add_values`
//   of keys, a lane each:    the same two by `score`, and by `add_values` dv += p^T dout and dk += ds^T q
//
// Each tile owns what it writes, so sums do not depend on threads. The tiles of keys compute scores and dout
// v^T again: to keep them would take as much memory as the dense scores, and to add dq up from there,
// atomics.

// q or k, dout or v of the tile, as [channel][kTileQueries]: rows [first, first + rows) times a factor.
template <class T>
inline void transpose_rows(float* to, const attention::Rows<const T>& from, std::int64_t first,
                           std::int64_t rows, std::int64_t dim, float factor) {
  for (std::int64_t c = 0; c < dim * kTileQueries; ++c) to[c] = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < dim; ++c) to[c * kTileQueries + i] = factor * number(from[first + i] + c);
}

template <class T>
inline void store_transposed(const attention::Rows<T>& to, const float* from, std::int64_t first,
                             std::int64_t rows, std::int64_t dim, float factor) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < dim; ++c) put(to[first + i] + c, factor * from[c * kTileQueries + i]);
}

// scores -> p = exp(score - lse), gradients -> ds = p (gradient - shift); zero where a score is -inf.
[[gnu::always_inline]] inline void soften(Cell* scores, Cell* gradients, Vec8 lse, Vec8 shift) {
  const Vec8 score = widen8(scores);
  const Vec8 kept = _mm256_cmp_ps(score, all8(-std::numeric_limits<float>::infinity()), _CMP_NEQ_UQ);
  const Vec8 p = _mm256_and_ps(kept, exponential(_mm256_sub_ps(score, lse)));
  narrow8(scores, p);
  narrow8(gradients, _mm256_and_ps(kept, _mm256_mul_ps(p, _mm256_sub_ps(widen8(gradients), shift))));
}

// -inf is a query without keys, whose scores are -inf, too.
[[gnu::always_inline]] inline float finite(float lse) {
  return lse == -std::numeric_limits<float>::infinity() ? 0.0f : lse;
}

// Scores and gradients of a step's rows against the tile's columns.
[[gnu::always_inline]] inline void both_products(Cell* scores, const Cell* columns, const StepRows& rows,
                                                 Cell* gradients, const Cell* gradient_columns,
                                                 const StepRows& gradient_rows, std::int64_t count,
                                                 std::int64_t dim) {
  in_tiles(
      count, [&](std::int64_t at, auto size) __attribute__((always_inline)) {
        score<size.value>(scores + at * kTileQueries, columns, rows.first + at * rows.stride, rows.stride,
                          dim);
      });
  in_tiles(
      count, [&](std::int64_t at, auto size) __attribute__((always_inline)) {
        score<size.value>(gradients + at * kTileQueries, gradient_columns,
                          gradient_rows.first + at * gradient_rows.stride, gradient_rows.stride, dim);
      });
}

[[gnu::always_inline]] inline void add_product(Cell* sums, const Cell* p, const StepRows& rows,
                                               std::int64_t count, std::int64_t dim) {
  in_tiles(
      dim, [&](std::int64_t at, auto size) __attribute__((always_inline)) {
        add_values<size.value>(sums + at * kTileQueries, p, rows.first + at, rows.stride, count);
      });
}

// Widened rows of one step; fp32 needs none.
template <class T>
struct Widened {
  static constexpr std::int64_t kCount = std::is_same_v<T, float> ? 1 : kStepKeys * kMostHeadDim;
  alignas(64) float cells[kCount];
};

// dq of a tile of queries, and their shifts, sum(dout out) - dlse, into the workspace.
template <class T>
void queries_tile(const cpu::AttentionTile& tile) {
  const Args& args = tile.args;
  const Problem& p = args.problem;
  const Sequence sequence(args, tile.batch);
  const std::int64_t dim = p.head_dim, kv_head = tile.head / (p.heads / p.kv_heads);
  const auto of_head = [&](const attention::Tensor& tensor) {
    return attention::rows_of<const T>(args, tensor, tile.batch, tile.head, sequence.q_first);
  };
  const auto q = of_head(args.q), dout = of_head(args.dout), out = of_head(args.out);
  const auto k = attention::rows_of<const T>(args, args.k, tile.batch, kv_head, sequence.kv_first);
  const auto v = attention::rows_of<const T>(args, args.v, tile.batch, kv_head, sequence.kv_first);
  const auto *const q_documents = attention::documents_of(args, args.q_documents, tile.batch,
                                                          sequence.q_first, p.q_tokens),
                    *const kv_documents = attention::documents_of(args, args.kv_documents, tile.batch,
                                                                  sequence.kv_first, p.kv_tokens);
  alignas(64) float queries[kMostHeadDim * kTileQueries], douts[kMostHeadDim * kTileQueries];
  alignas(64) float sums[kMostHeadDim * kTileQueries];
  alignas(64) float scores[kStepKeys * kTileQueries], gradients[kStepKeys * kTileQueries];
  alignas(64) float lse[kTileQueries], shift[kTileQueries];
  Widened<T> widened_k, widened_v;
  transpose_rows<T>(queries, q, tile.first, tile.rows, dim, args.scale);
  transpose_rows<T>(douts, dout, tile.first, tile.rows, dim, 1);
  for (std::int64_t c = 0; c < dim * kTileQueries; ++c) sums[c] = 0;
  for (std::int64_t i = 0; i < kTileQueries; ++i) lse[i] = shift[i] = 0;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int64_t at = attention::lse_at(args, sequence, tile.batch, tile.head, tile.first + i);
    float sum = args.dlse == nullptr ? 0.0f : -args.dlse[at];
    for (std::int64_t c = 0; c < dim; ++c)
      sum += douts[c * kTileQueries + i] * number(out[tile.first + i] + c);
    lse[i] = finite(args.lse[at]), shift[i] = sum;
    static_cast<float*>(args.workspace)[at] = sum;
  }
  const attention::List list = attention::list_of(args.of_queries, tile.batch, tile.head, tile.block);
  const std::int64_t first_end = sequence.key_end(p, tile.first),
                     last_end = sequence.key_end(p, tile.first + tile.rows - 1);
  for (std::int64_t n = 0; n < list.count; ++n) {
    const Entry entry(list.entries[n]);
    const attention::Span span(entry.block, p.kv_block, last_end);
    for (std::int64_t begin = span.begin; begin < span.end; begin += kStepKeys) {
      const std::int64_t keys = span.end - begin < kStepKeys ? span.end - begin : kStepKeys;
      const StepRows k_rows = rows_of_step<T>(k, begin, keys, dim, widened_k.cells),
                     v_rows = rows_of_step<T>(v, begin, keys, dim, widened_v.cells);
      both_products(scores, queries, k_rows, gradients, douts, v_rows, keys, dim);
      if (entry.partial || begin + keys > first_end)
        mask(scores, tile, sequence, begin, keys, entry.partial ? q_documents : nullptr, kv_documents);
      for (std::int64_t at = 0; at < kTileQueries; at += 8)
        for (std::int64_t j = 0; j < keys; ++j)
          soften(scores + j * kTileQueries + at, gradients + j * kTileQueries + at, widen8(lse + at),
                 widen8(shift + at));
      add_product(sums, gradients, k_rows, keys, dim);
    }
  }
  store_transposed(attention::rows_of<T>(args, args.dq, tile.batch, tile.head, sequence.q_first), sums,
                   tile.first, tile.rows, dim, args.scale);
}

// dk and dv of a tile of keys; tile.head is a head of keys, tile.block a block of keys.
template <class T>
void keys_tile(const cpu::AttentionTile& tile) {
  const Args& args = tile.args;
  const Problem& p = args.problem;
  const Sequence sequence(args, tile.batch);
  const std::int64_t dim = p.head_dim, group = p.heads / p.kv_heads;
  const auto k = attention::rows_of<const T>(args, args.k, tile.batch, tile.head, sequence.kv_first);
  const auto v = attention::rows_of<const T>(args, args.v, tile.batch, tile.head, sequence.kv_first);
  const auto *const q_documents = attention::documents_of(args, args.q_documents, tile.batch,
                                                          sequence.q_first, p.q_tokens),
                    *const kv_documents = attention::documents_of(args, args.kv_documents, tile.batch,
                                                                  sequence.kv_first, p.kv_tokens);
  alignas(64) float keys[kMostHeadDim * kTileQueries], values[kMostHeadDim * kTileQueries];
  alignas(64) float dk[kMostHeadDim * kTileQueries], dv[kMostHeadDim * kTileQueries];
  alignas(64) float scores[kStepKeys * kTileQueries], gradients[kStepKeys * kTileQueries];
  Widened<T> widened_q, widened_dout;
  transpose_rows<T>(keys, k, tile.first, tile.rows, dim, args.scale);
  transpose_rows<T>(values, v, tile.first, tile.rows, dim, 1);
  for (std::int64_t c = 0; c < dim * kTileQueries; ++c) dk[c] = dv[c] = 0;
  for (std::int64_t head = tile.head * group; head < (tile.head + 1) * group; ++head) {
    const auto q = attention::rows_of<const T>(args, args.q, tile.batch, head, sequence.q_first);
    const auto dout = attention::rows_of<const T>(args, args.dout, tile.batch, head, sequence.q_first);
    const attention::List list = attention::list_of(args.of_keys, tile.batch, head, tile.block);
    for (std::int64_t n = 0; n < list.count; ++n) {
      const Entry entry(list.entries[n]);
      const attention::Span span(entry.block, p.q_block, sequence.queries);
      for (std::int64_t begin = span.begin; begin < span.end; begin += kStepKeys) {
        const std::int64_t rows = span.end - begin < kStepKeys ? span.end - begin : kStepKeys;
        if (sequence.key_end(p, begin + rows - 1) <= tile.first) continue;  // all before the diagonal
        const StepRows q_rows = rows_of_step<T>(q, begin, rows, dim, widened_q.cells),
                       dout_rows = rows_of_step<T>(dout, begin, rows, dim, widened_dout.cells);
        both_products(scores, keys, q_rows, gradients, values, dout_rows, rows, dim);
        for (std::int64_t i = 0; i < rows; ++i) {
          Cell* const row = scores + i * kTileQueries;
          const std::int64_t query = begin + i, end = sequence.key_end(p, query) - tile.first;
          for (std::int64_t j = end < 0 ? 0 : end; j < tile.rows; ++j)
            row[j] = -std::numeric_limits<float>::infinity();
          if (entry.partial)
            for (std::int64_t j = 0; j < tile.rows; ++j)
              if (q_documents[query] != kv_documents[tile.first + j])
                row[j] = -std::numeric_limits<float>::infinity();
          const std::int64_t at = attention::lse_at(args, sequence, tile.batch, head, query);
          const Vec8 lse = all8(finite(args.lse[at])),
                     shift = all8(static_cast<const float*>(args.workspace)[at]);
          for (std::int64_t j = 0; j < kTileQueries; j += 8)
            soften(row + j, gradients + i * kTileQueries + j, lse, shift);
        }
        add_product(dv, scores, dout_rows, rows, dim);
        add_product(dk, gradients, q_rows, rows, dim);
      }
    }
  }
  store_transposed(attention::rows_of<T>(args, args.dk, tile.batch, tile.head, sequence.kv_first), dk,
                   tile.first, tile.rows, dim, args.scale);
  store_transposed(attention::rows_of<T>(args, args.dv, tile.batch, tile.head, sequence.kv_first), dv,
                   tile.first, tile.rows, dim, 1);
}
