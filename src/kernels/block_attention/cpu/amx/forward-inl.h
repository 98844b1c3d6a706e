// One tile of queries against the keys of its list. Included inside AMX's region, after
// avx512/vector.h, the activations and generic/mask-inl.h.
//
// As in generic/forward-inl.h queries lie along the lanes: scores are [key][query] and sums [channel][query].
// So K's rows are tiles of A as they are in memory, and the queries, packed once, are tiles of B. For the
// second product V is transposed, 64 keys at a time, and the shares are rounded to bf16, as on GPUs.

using attention::Entry, attention::List, attention::Problem, attention::Sequence;
using core::Bf16;
using cpu::kMostHeadDim, cpu::kStepKeys, cpu::kTileQueries;

constexpr std::int64_t kSide = 16, kDepth = 32;  // of a tile: rows or columns, and pairs of what it sums over

// The first n of sixteen lanes, or none.
inline __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

// x[i][j] -> x[j][i], of numbers of 32 bits.
inline void transpose(__m512i (&x)[kLanes]) {
  Vec rows[kLanes];
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { rows[i.value] = _mm512_castsi512_ps(x[i.value]); });
  transpose(rows);
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { x[i.value] = _mm512_castps_si512(rows[i.value]); });
}

// Four tiles of sums: of 32 rows of A and 32 columns of B.
struct Product {
  const std::uint16_t* a;
  std::int64_t a_stride;  // numbers
  const std::uint32_t* b;
  float* sums;  // [rows][kTileQueries]

  [[gnu::always_inline]] void load() const { each<true>(); }
  [[gnu::always_inline]] void store() const { each<false>(); }
  [[gnu::always_inline]] void step(std::int64_t depth) const {
    const auto* const left = a + depth;
    const auto* const right = b + depth / 2 * kTileQueries;
    tile_load<4>(left, 2 * a_stride);
    tile_load<6>(right, 4 * kTileQueries);
    tile_load<7>(right + kSide, 4 * kTileQueries);
    tile_dot<0, 4, 6>();
    tile_dot<1, 4, 7>();
    tile_load<5>(left + kSide * a_stride, 2 * a_stride);
    tile_dot<2, 5, 6>();
    tile_dot<3, 5, 7>();
  }

 private:
  template <bool kLoad>
  [[gnu::always_inline]] void each() const {
    constexpr std::int64_t kBytes = 4 * kTileQueries;
    float* const second = sums + kSide * kTileQueries;
    if constexpr (kLoad) {
      tile_load<0>(sums, kBytes), tile_load<1>(sums + kSide, kBytes);
      tile_load<2>(second, kBytes), tile_load<3>(second + kSide, kBytes);
    } else {
      tile_store<0>(sums, kBytes), tile_store<1>(sums + kSide, kBytes);
      tile_store<2>(second, kBytes), tile_store<3>(second + kSide, kBytes);
    }
  }
};

struct Forward {
  alignas(64) std::uint32_t queries[kMostHeadDim / 2 * kTileQueries];  // pairs of channels
  alignas(64) std::uint32_t shares[kStepKeys / 2 * kTileQueries];      // pairs of keys
  alignas(64) std::uint16_t keys[kStepKeys * kMostHeadDim];            // of a step at a ragged edge
  alignas(64) std::uint16_t values[kMostHeadDim * kStepKeys];          // [channel][key]
  alignas(64) float scores[kStepKeys * kTileQueries], sums[kMostHeadDim * kTileQueries];
  alignas(64) float largest[kTileQueries], total[kTileQueries], keep[kTileQueries];

  // Pairs of channels of the tile's queries, negated where `flips` is the sign bit of both.
  void pack_queries(const attention::Rows<const Bf16>& q, std::int64_t first, std::int64_t rows,
                    std::int64_t dim, std::int64_t depth, int flips) {
    for (std::int64_t at = 0; at < kTileQueries; at += kSide)
      for (std::int64_t c = 0; c < depth; c += kDepth) {
        __m512i x[kSide];
        const auto mask = static_cast<__mmask32>(dim - c >= 32 ? ~0u : (1u << (dim - c)) - 1);
        for (std::int64_t i = 0; i < kSide; ++i)
          x[i] =
              at + i < rows ? _mm512_maskz_loadu_epi16(mask, q[first + at + i] + c) : _mm512_setzero_si512();
        transpose(x);
        for (std::int64_t i = 0; i < kSide; ++i)
          _mm512_store_si512(queries + (c / 2 + i) * kTileQueries + at,
                             _mm512_xor_si512(x[i], _mm512_set1_epi32(flips)));
      }
  }

  void transpose_values(const attention::Rows<const Bf16>& v, std::int64_t begin, std::int64_t count,
                        std::int64_t dim, std::int64_t depth) {
    for (std::int64_t j = 0; j < kStepKeys; j += kDepth)
      for (std::int64_t c = 0; c < depth; c += kSide) {
        __m512i x[kSide];
        const __mmask16 mask = first_lanes(dim - c);
        const auto row = [&](std::int64_t key) __attribute__((always_inline)) {
          return key < count ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, v[begin + key] + c))
                             : _mm512_setzero_si512();
        };
        for (std::int64_t i = 0; i < kSide; ++i)
          x[i] = _mm512_or_si512(row(j + 2 * i), _mm512_slli_epi32(row(j + 2 * i + 1), 16));
        transpose(x);
        for (std::int64_t i = 0; i < kSide; ++i) _mm512_store_si512(values + (c + i) * kStepKeys + j, x[i]);
      }
  }

  // scores -> shares exp(scale (score - largest)); returns whether `keep`, the factor of earlier sums, is not
  // 1 somewhere. As Softmax of generic/forward-inl.h treats NaN and -inf.
  bool softmax(std::int64_t count, std::int64_t lanes, float scale) {
    const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    const __m512 by = _mm512_set1_ps(scale), one = _mm512_set1_ps(1.0f);
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                                 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    int changed = 0;
    for (std::int64_t at = 0; at < lanes; at += kSide) {
      const float* const of = scores + at;
      const __m512 before = _mm512_load_ps(largest + at);
      __m512 most = before;
      for (std::int64_t j = 0; j < count; ++j)
        most = _mm512_max_ps(_mm512_load_ps(of + j * kTileQueries), most);
      const __m512 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(most, lowest, _CMP_NEQ_UQ), most);
      const __m512 factor = exponential(_mm512_mul_ps(_mm512_sub_ps(before, shift), by));
      __m512 sum = _mm512_mul_ps(_mm512_load_ps(total + at), factor);
      for (std::int64_t j = 0; j < kStepKeys; j += 2) {
        const auto share = [&](std::int64_t key) __attribute__((always_inline)) {
          if (key >= count) return _mm512_setzero_ps();
          return exponential(
              _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(of + key * kTileQueries), shift), by));
        };
        const __m512 even = share(j), odd = share(j + 1);
        sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
        const auto pairs = _mm512_cvtne2ps_pbh(odd, even);
        _mm512_store_si512(shares + j / 2 * kTileQueries + at,
                           _mm512_permutexvar_epi16(interleaved, (__m512i)pairs));
      }
      _mm512_store_ps(largest + at, most);
      _mm512_store_ps(total + at, sum);
      _mm512_store_ps(keep + at, factor);
      changed |= _mm512_cmp_ps_mask(factor, one, _CMP_NEQ_UQ);
    }
    return changed != 0;
  }

  void scale_sums(std::int64_t dim, std::int64_t lanes) {
    for (std::int64_t at = 0; at < lanes; at += kSide) {
      const __m512 factor = _mm512_load_ps(keep + at);
      for (std::int64_t c = 0; c < dim; ++c) {
        float* const sum = sums + c * kTileQueries + at;
        _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor));
      }
    }
  }

  void write(const attention::Rows<Bf16>& out, std::int64_t first, std::int64_t rows, std::int64_t dim) {
    for (std::int64_t at = 0; at < rows; at += kSide) {
      const __m512 sum = _mm512_load_ps(total + at);
      const __mmask16 some = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      const __m512 share = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), sum);
      for (std::int64_t c = 0; c < dim; c += kSide) {
        __m512i x[kSide];
        for (std::int64_t i = 0; i < kSide; ++i)
          x[i] =
              _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(sums + (c + i) * kTileQueries + at), share));
        transpose(x);
        const std::int64_t count = rows - at < kSide ? rows - at : kSide;
        for (std::int64_t i = 0; i < count; ++i)
          _mm256_mask_storeu_epi16(out[first + at + i] + c, first_lanes(dim - c),
                                   (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(x[i])));
      }
    }
  }
};

void forward_tile(const cpu::AttentionTile& tile) {
  const auto& args = tile.args;
  const Problem& p = args.problem;
  const Sequence sequence(args, tile.batch);
  const std::int64_t dim = p.head_dim, depth = core::round_up(dim, kDepth),
                     kv_head = tile.head / (p.heads / p.kv_heads);
  const auto q = attention::rows_of<const Bf16>(args, args.q, tile.batch, tile.head, sequence.q_first);
  const auto k = attention::rows_of<const Bf16>(args, args.k, tile.batch, kv_head, sequence.kv_first);
  const auto v = attention::rows_of<const Bf16>(args, args.v, tile.batch, kv_head, sequence.kv_first);
  const auto *const q_documents = attention::documents_of(args, args.q_documents, tile.batch,
                                                          sequence.q_first, p.q_tokens),
                    *const kv_documents = attention::documents_of(args, args.kv_documents, tile.batch,
                                                                  sequence.kv_first, p.kv_tokens);
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.rows[i] = kSide, config.row_bytes[i] = 4 * kSide;
  tiles_begin(config);
  Forward w;
  // The softmax multiplies by a scale above 0: its largest score is that of the products.
  const float scale = args.scale == 0 ? 1.0f : std::fabs(args.scale);
  w.pack_queries(q, tile.first, args.scale == 0 ? 0 : tile.rows, dim, depth,
                 args.scale < 0 ? static_cast<int>(0x80008000u) : 0);
  for (std::int64_t i = 0; i < kTileQueries; ++i)
    w.largest[i] = -std::numeric_limits<float>::infinity(), w.total[i] = 0;
  std::memset(w.sums, 0, static_cast<std::size_t>(depth * kTileQueries) * sizeof(float));

  // Of few queries, as in decode, half of the columns are enough.
  const std::int64_t lanes = core::round_up(tile.rows, 2 * kSide);
  const List list = attention::list_of(args.of_queries, tile.batch, tile.head, tile.block);
  const std::int64_t first_end = sequence.key_end(p, tile.first),
                     last_end = sequence.key_end(p, tile.first + tile.rows - 1);
  for (std::int64_t n = 0; n < list.count; ++n) {
    const Entry entry(list.entries[n]);
    const attention::Span span(entry.block, p.kv_block, last_end);
    for (std::int64_t begin = span.begin; begin < span.end; begin += kStepKeys) {
      const std::int64_t count = span.end - begin < kStepKeys ? span.end - begin : kStepKeys;
      const std::uint16_t* rows = reinterpret_cast<const std::uint16_t*>(k[begin]);
      std::int64_t stride = k.stride;
      if (count < kStepKeys || depth != dim) {  // tiles would read beyond the tensor
        rows = w.keys, stride = depth;
        for (std::int64_t j = 0; j < kStepKeys; ++j) {
          const std::int64_t here = j < count ? dim : 0;
          if (here > 0) std::memcpy(w.keys + j * depth, k[begin + j], static_cast<std::size_t>(2 * here));
          std::memset(w.keys + j * depth + here, 0, static_cast<std::size_t>(2 * (depth - here)));
        }
      }
      for (std::int64_t j = 0; j < count; j += 2 * kSide)
        for (std::int64_t at = 0; at < lanes; at += 2 * kSide) {
          const Product product{rows + j * stride, stride, w.queries + at, w.scores + j * kTileQueries + at};
          tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
          for (std::int64_t c = 0; c < depth; c += kDepth) product.step(c);
          product.store();
        }
      if (entry.partial || begin + count > first_end)
        mask(w.scores, tile, sequence, begin, count, entry.partial ? q_documents : nullptr, kv_documents);
      if (w.softmax(count, lanes, scale)) w.scale_sums(dim, lanes);
      w.transpose_values(v, begin, count, dim, depth);
      for (std::int64_t c = 0; c < depth; c += 2 * kSide)
        for (std::int64_t at = 0; at < lanes; at += 2 * kSide) {
          const Product product{w.values + c * kStepKeys, kStepKeys, w.shares + at,
                                w.sums + c * kTileQueries + at};
          product.load();
          for (std::int64_t j = 0; j < count; j += kDepth) product.step(j);
          product.store();
        }
    }
  }
  tiles_end();
  const auto out = attention::rows_of<Bf16>(args, args.out, tile.batch, tile.head, sequence.q_first);
  w.write(out, tile.first, tile.rows, dim);
  for (std::int64_t i = 0; i < tile.rows; ++i)
    args.lse[attention::lse_at(args, sequence, tile.batch, tile.head, tile.first + i)] =
        w.total[i] == 0 ? -std::numeric_limits<float>::infinity()
                        : scale * w.largest[i] + std::log(w.total[i]);
}
