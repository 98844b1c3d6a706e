// One tile of queries against the keys of its list. Included inside an instruction set's region, after
// vector.h and activation-inl.h.
//
// Everything lies with queries along the lanes: q, the scores of a step's keys, and the sums, as [channel or
// key][kTileQueries]. So the softmax needs no sums across lanes, K and V are read as they are in memory, one
// number at a time and spread over the lanes, and only q and the result are transposed, once per tile.

using attention::Args, attention::Entry, attention::List, attention::Problem, attention::Sequence;
using cpu::Cell, cpu::kMostHeadDim, cpu::kStepKeys, cpu::kTileQueries;

// Keys, or channels, and vectors of queries of a register tile: AVX-512 has 6 x 4 sums, 4 loaded vectors and
// a broadcast in 32 registers; AVX2 6 x 2, 2 and 1 in 16.
constexpr int kRows = 6, kGroup = kRegisters == 32 ? 4 : 2;

// The rows of the tile's keys or values of one step, as fp32.
struct StepRows {
  const Cell* first;
  std::int64_t stride;
};

// fp32 rows are read where they are; others are widened into `memory`.
template <class T>
[[gnu::always_inline]] inline StepRows rows_of_step(const attention::Rows<const T>& from, std::int64_t begin,
                                                    std::int64_t count, std::int64_t dim, Cell* memory) {
  if constexpr (std::is_same_v<T, float>) {
    return {from[begin], from.stride};
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t c = 0;
      for (; c + kLanes <= dim; c += kLanes) store(memory + i * dim + c, widen(from[begin + i] + c));
      if (c < dim) narrow_first(memory + i * dim + c, widen_first(from[begin + i] + c, dim - c), dim - c);
    }
    return {memory, dim};
  }
}

// to[r][query] = sum over channels of q[c][query] rows[r][c].
template <int kCount, int kColumns = kGroup>
[[gnu::always_inline]] inline void score(Cell* to, const Cell* q, const Cell* rows, std::int64_t stride,
                                         std::int64_t dim, std::int64_t lanes = kTileQueries) {
  for (std::int64_t at = 0; at < lanes; at += kColumns * kLanes) {
    Vec sums[kCount][kColumns];
    unroll<kCount>(SPARSELOOM_UNROLLED(r) {
      unroll<kColumns>(SPARSELOOM_UNROLLED(v) { sums[r.value][v.value] = zero(); });
    });
    for (std::int64_t c = 0; c < dim; ++c) {
      Vec x[kColumns];
      unroll<kColumns>(
          SPARSELOOM_UNROLLED(v) { x[v.value] = load(q + c * kTileQueries + at + v.value * kLanes); });
      unroll<kCount>(SPARSELOOM_UNROLLED(r) {
        const Vec w = splat(rows + r.value * stride + c);
        unroll<kColumns>(
            SPARSELOOM_UNROLLED(v) { sums[r.value][v.value] = fma(sums[r.value][v.value], x[v.value], w); });
      });
    }
    unroll<kCount>(SPARSELOOM_UNROLLED(r) {
      unroll<kColumns>(SPARSELOOM_UNROLLED(v) {
        store(to + r.value * kTileQueries + at + v.value * kLanes, sums[r.value][v.value]);
      });
    });
  }
}

// sums[r][query] += sum over keys of p[key][query] values[key][r].
template <int kCount, int kColumns = kGroup>
[[gnu::always_inline]] inline void add_values(Cell* sums_at, const Cell* p, const Cell* values,
                                              std::int64_t stride, std::int64_t keys,
                                              std::int64_t lanes = kTileQueries) {
  for (std::int64_t at = 0; at < lanes; at += kColumns * kLanes) {
    Vec sums[kCount][kColumns];
    unroll<kCount>(SPARSELOOM_UNROLLED(r) {
      unroll<kColumns>(SPARSELOOM_UNROLLED(v) {
        sums[r.value][v.value] = load(sums_at + r.value * kTileQueries + at + v.value * kLanes);
      });
    });
    for (std::int64_t j = 0; j < keys; ++j) {
      Vec x[kColumns];
      unroll<kColumns>(
          SPARSELOOM_UNROLLED(v) { x[v.value] = load(p + j * kTileQueries + at + v.value * kLanes); });
      unroll<kCount>(SPARSELOOM_UNROLLED(r) {
        const Vec w = splat(values + j * stride + r.value);
        unroll<kColumns>(
            SPARSELOOM_UNROLLED(v) { sums[r.value][v.value] = fma(sums[r.value][v.value], x[v.value], w); });
      });
    }
    unroll<kCount>(SPARSELOOM_UNROLLED(r) {
      unroll<kColumns>(SPARSELOOM_UNROLLED(v) {
        store(sums_at + r.value * kTileQueries + at + v.value * kLanes, sums[r.value][v.value]);
      });
    });
  }
}

// Calls body(first row, count) for register tiles of [0, rows), the count as a constant.
template <class Body>
[[gnu::always_inline]] inline void in_tiles(std::int64_t rows, const Body& body) {
  std::int64_t at = 0;
  for (; at + kRows <= rows; at += kRows) body(at, std::integral_constant<int, kRows>{});
  switch (rows - at) {
    case 1: return body(at, std::integral_constant<int, 1>{});
    case 2: return body(at, std::integral_constant<int, 2>{});
    case 3: return body(at, std::integral_constant<int, 3>{});
    case 4: return body(at, std::integral_constant<int, 4>{});
    case 5: return body(at, std::integral_constant<int, 5>{});
    default: return;
  }
}

// The largest score and the sum of exp(score - largest) of each query.
struct Softmax {
  alignas(64) float largest[kTileQueries], total[kTileQueries];

  // scores -> exp(score - largest); returns whether `keep`, the factor of earlier sums, is not 1 somewhere.
  bool step(Cell* scores, std::int64_t keys, std::int64_t lanes, float (&keep)[kTileQueries]) {
    const Vec8 lowest = all8(-std::numeric_limits<float>::infinity()), one = all8(1.0f);
    int changed = 0;
    for (std::int64_t at = 0; at < lanes; at += 8) {
      const Vec8 before = widen8(largest + at);
      Vec8 most = before;
      // max returns its second operand where either is NaN: a NaN score does not become the largest, its
      // exponential makes the total NaN.
      for (std::int64_t j = 0; j < keys; ++j)
        most = _mm256_max_ps(widen8(scores + j * kTileQueries + at), most);
      // Nothing kept so far: exp(-inf - 0) is zero.
      const Vec8 shift = _mm256_andnot_ps(_mm256_cmp_ps(most, lowest, _CMP_EQ_OQ), most);
      const Vec8 factor = exponential(_mm256_sub_ps(before, shift));
      Vec8 sum = _mm256_mul_ps(widen8(total + at), factor);
      for (std::int64_t j = 0; j < keys; ++j) {
        const Vec8 p = exponential(_mm256_sub_ps(widen8(scores + j * kTileQueries + at), shift));
        sum = _mm256_add_ps(sum, p);
        narrow8(scores + j * kTileQueries + at, p);
      }
      narrow8(largest + at, most);
      narrow8(total + at, sum);
      narrow8(keep + at, factor);
      changed |= _mm256_movemask_ps(_mm256_cmp_ps(factor, one, _CMP_NEQ_UQ));
    }
    return changed != 0;
  }
};

template <class T>
[[gnu::always_inline]] inline float number(const T* x) {
  if constexpr (std::is_same_v<T, float>)
    return *x;
  else
    return core::to_f32(*x);
}
[[gnu::always_inline]] inline void put(float* to, float x) { *to = x; }
[[gnu::always_inline]] inline void put(core::F16* to, float x) { *to = core::to_f16(x); }
[[gnu::always_inline]] inline void put(core::Bf16* to, float x) { *to = core::to_bf16(x); }

// With kFew vectors of queries, of which the tile's rows are the first.
template <class T, int kFew>
void forward_rows(const cpu::AttentionTile& tile) {
  constexpr std::int64_t lanes = kFew * kLanes;
  constexpr int kColumns = kFew < kGroup ? kFew : kGroup;
  const Args& args = tile.args;
  const Problem& p = args.problem;
  const Sequence sequence(args, tile.batch);
  const std::int64_t dim = p.head_dim, kv_head = tile.head / (p.heads / p.kv_heads);
  const auto q = attention::rows_of<const T>(args, args.q, tile.batch, tile.head, sequence.q_first);
  const auto k = attention::rows_of<const T>(args, args.k, tile.batch, kv_head, sequence.kv_first);
  const auto v = attention::rows_of<const T>(args, args.v, tile.batch, kv_head, sequence.kv_first);
  const auto *const q_documents = attention::documents_of(args, args.q_documents, tile.batch,
                                                          sequence.q_first, p.q_tokens),
                    *const kv_documents = attention::documents_of(args, args.kv_documents, tile.batch,
                                                                  sequence.kv_first, p.kv_tokens);

  alignas(64) float queries[kMostHeadDim * kTileQueries], sums[kMostHeadDim * kTileQueries];
  alignas(64) float scores[kStepKeys * kTileQueries], keep[kTileQueries];
  constexpr std::int64_t kWidened = std::is_same_v<T, float> ? 1 : kStepKeys * kMostHeadDim;
  alignas(64) float widened_k[kWidened], widened_v[kWidened];
  Softmax softmax;
  for (std::int64_t i = 0; i < kTileQueries; ++i)
    softmax.largest[i] = -std::numeric_limits<float>::infinity(), softmax.total[i] = 0;
  for (std::int64_t c = 0; c < dim * kTileQueries; ++c) queries[c] = 0, sums[c] = 0;
  for (std::int64_t i = 0; i < tile.rows; ++i)
    for (std::int64_t c = 0; c < dim; ++c)
      queries[c * kTileQueries + i] = args.scale * number(q[tile.first + i] + c);

  const List list = attention::list_of(args.of_queries, tile.batch, tile.head, tile.block);
  const std::int64_t first_end = sequence.key_end(p, tile.first),
                     last_end = sequence.key_end(p, tile.first + tile.rows - 1);
  for (std::int64_t n = 0; n < list.count; ++n) {
    const Entry entry(list.entries[n]);
    const attention::Span span(entry.block, p.kv_block, last_end);
    for (std::int64_t begin = span.begin; begin < span.end; begin += kStepKeys) {
      const std::int64_t keys = span.end - begin < kStepKeys ? span.end - begin : kStepKeys;
      const StepRows k_rows = rows_of_step<T>(k, begin, keys, dim, widened_k),
                     v_rows = rows_of_step<T>(v, begin, keys, dim, widened_v);
      in_tiles(
          keys, [&](std::int64_t at, auto count) __attribute__((always_inline)) {
            score<count.value, kColumns>(scores + at * kTileQueries, queries,
                                         k_rows.first + at * k_rows.stride, k_rows.stride, dim, lanes);
          });
      if (entry.partial || begin + keys > first_end)
        mask(scores, tile, sequence, begin, keys, entry.partial ? q_documents : nullptr, kv_documents);
      if (softmax.step(scores, keys, lanes, keep))
        for (std::int64_t c = 0; c < dim; ++c)
          for (std::int64_t i = 0; i < lanes; ++i) sums[c * kTileQueries + i] *= keep[i];
      in_tiles(
          dim, [&](std::int64_t at, auto count) __attribute__((always_inline)) {
            add_values<count.value, kColumns>(sums + at * kTileQueries, scores, v_rows.first + at,
                                              v_rows.stride, keys, lanes);
          });
    }
  }

  const auto out = attention::rows_of<T>(args, args.out, tile.batch, tile.head, sequence.q_first);
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const float total = softmax.total[i];
    const bool empty = total == 0;
    const float share = empty ? 0.0f : 1 / total;
    for (std::int64_t c = 0; c < dim; ++c) put(out[tile.first + i] + c, sums[c * kTileQueries + i] * share);
    args.lse[attention::lse_at(args, sequence, tile.batch, tile.head, tile.first + i)] =
        empty ? -std::numeric_limits<float>::infinity() : softmax.largest[i] + std::log(total);
  }
}

// Of few queries, as in decode, one vector or two hold all.
template <class T>
void forward_tile(const cpu::AttentionTile& tile) {
  if (tile.rows <= kLanes) return forward_rows<T, 1>(tile);
  if (tile.rows <= 2 * kLanes) return forward_rows<T, 2>(tile);
  forward_rows<T, kTileQueries / kLanes>(tile);
}
