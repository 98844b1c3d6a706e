// The grouped kernels. Included inside an instruction set's region, after its vectors.

// Sums kPlaces of a pattern's inputs for the outputs that use it. `n`: all positions of the pattern.
template <int kPlaces, int kVectors>
void add_pattern(const float* x, const std::uint8_t* places, const float* values, std::int64_t n,
                 const std::int16_t* order, std::int64_t g, float* sums) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  Vec inputs[kPlaces][kVectors];
  unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      inputs[i.value][v.value] = load(x + places[i.value] * kTokens + v.value * kLanes);
    });
  });
  for (std::int64_t j = 0; j < g; ++j, values += n) {
    float* const to = sums + order[j] * kTokens;
    Vec weights[kPlaces];
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) { weights[i.value] = splat(values + i.value); });
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      Vec sum = load(to + v.value * kLanes);
      unroll<kPlaces>(SPARSELOOM_UNROLLED(i) { sum = fma(sum, inputs[i.value][v.value], weights[i.value]); });
      store(to + v.value * kLanes, sum);
    });
  }
}

// Patterns with more positions than registers hold inputs are added in several passes.
template <int kVectors>
void add_strip(const NmgView& w, const float* x, const float* values, const std::int16_t* order,
               float* sums) {
  const auto piece = [&](auto places) {
    constexpr int kPlaces = decltype(places)::value;
    return add_pattern<kPlaces, kVectors>;
  };
  const std::uint8_t* places = w.places;
  for (std::int64_t p = 0; p < w.patterns; ++p, places += w.n, order += w.g, values += w.g * w.n)
    for (std::int64_t i = 0; i < w.n;) {
      const std::int64_t left = w.n - i;
      if (left >= 4)
        piece(std::integral_constant<int, 4>{})(x, places + i, values + i, w.n, order, w.g, sums), i += 4;
      else if (left >= 2)
        piece(std::integral_constant<int, 2>{})(x, places + i, values + i, w.n, order, w.g, sums), i += 2;
      else
        piece(std::integral_constant<int, 1>{})(x, places + i, values + i, w.n, order, w.g, sums), i += 1;
    }
}

// One token: its sums are single floats. kPlaces: positions of a pattern, or 0 for any number.
template <int kPlaces>
void add_strip_of_one(const NmgView& w, const float* x, const float* values, const std::int16_t* order,
                      float* sums) {
  constexpr std::int64_t kOutputs = 4;
  const std::int64_t n = kPlaces > 0 ? kPlaces : w.n;
  const std::uint8_t* places = w.places;
  for (std::int64_t p = 0; p < w.patterns; ++p, places += n) {
    float inputs[kPlaces > 0 ? kPlaces : 1];
    for (int i = 0; i < kPlaces; ++i) inputs[i] = x[places[i]];
    const auto add = [&](float sum, const float* weights) {
      for (std::int64_t i = 0; i < n; ++i)
        sum = __builtin_fmaf(kPlaces > 0 ? inputs[i] : x[places[i]], weights[i], sum);
      return sum;
    };
    std::int64_t j = 0;
    // The outputs of a pattern differ: all sums are loaded before the first is stored.
    for (; j + kOutputs <= w.g; j += kOutputs, order += kOutputs, values += kOutputs * n) {
      float added[kOutputs];
      unroll<kOutputs>(
          SPARSELOOM_UNROLLED(k) { added[k.value] = add(sums[order[k.value]], values + k.value * n); });
      unroll<kOutputs>(SPARSELOOM_UNROLLED(k) { sums[order[k.value]] = added[k.value]; });
    }
    for (; j < w.g; ++j, ++order, values += n) sums[*order] = add(sums[*order], values);
  }
}

// The features of a single token.
template <class T>
void pack_one(const cpu::TokenMatrix& matrix, const cpu::TokenTile& tile, std::int64_t begin,
              std::int64_t end) {
  const T* const from = static_cast<const T*>(matrix.from) + tile.first * matrix.stride;
  const std::int64_t stop = std::min(end, matrix.features);
  std::int64_t i = begin;
  for (; i + kLanes <= stop; i += kLanes) store(tile.x + i, widen(from + i));
  if (i < stop) narrow_first(tile.x + i, widen_first(from + i, stop - i), stop - i);
  if (end > stop) std::fill(tile.x + std::max(begin, stop), tile.x + end, 0.0f);
}

// Fills the vectors of kLanes features from `feature` on by cell(token, feature, features inside), whose
// lanes are features, and transposes them. Tokens of a cell: `each`.
template <class Cell>
[[gnu::always_inline]] inline void pack_tile(const cpu::TokenMatrix& matrix, const cpu::TokenTile& tile,
                                             std::int64_t begin, std::int64_t end, std::int64_t each,
                                             Cell cell) {
  const std::int64_t cells = tile.vectors * kLanes;
  for (std::int64_t feature = begin; feature < end; feature += kLanes)
    for (std::int64_t v = 0; v < tile.vectors; ++v) {
      Vec rows[kLanes];
      const std::int64_t inside = std::clamp<std::int64_t>(matrix.features - feature, 0, kLanes);
      for (int i = 0; i < kLanes; ++i)
        rows[i] = inside == 0 ? zero() : cell(tile.first + v * kLanes * each + i, feature, inside);
      transpose(rows);
      const std::int64_t present = std::min<std::int64_t>(kLanes, end - feature);
      for (std::int64_t i = 0; i < present; ++i) store(tile.x + (feature + i) * cells + v * kLanes, rows[i]);
    }
}

// A token's features in fp32, or zeros behind the last token.
template <class T>
[[gnu::always_inline]] inline Vec features_of(const cpu::TokenMatrix& matrix, std::int64_t token,
                                              std::int64_t feature, std::int64_t inside) {
  if (token >= matrix.tokens) return zero();
  const T* const from = static_cast<const T*>(matrix.from) + token * matrix.stride + feature;
  return inside == kLanes ? widen(from) : widen_first(from, inside);
}

template <class T>
void pack_grouped(const cpu::TokenMatrix& matrix, const cpu::TokenTile& tile, std::int64_t begin,
                  std::int64_t end) {
  if (tile.vectors == 0) return pack_one<T>(matrix, tile, begin, end);
  pack_tile(
      matrix, tile, begin, end,
      1, [&](std::int64_t token, std::int64_t feature, std::int64_t inside) __attribute__((always_inline)) {
        return features_of<T>(matrix, token, feature, inside);
      });
}

// Writes the sums of some features [features, tokens] as rows of `out` [tokens, features], from `first` on.
// By way of `rows`: a token's line is written at once, since the lines of many tokens often share a set of
// L1.
template <class T>
void write_grouped(const cpu::TokenTile& tile, std::int64_t tokens, std::int64_t first, std::int64_t features,
                   const T* bias, T* out, std::int64_t stride, const float* sums, float* rows) {
  const std::int64_t wide = tile.vectors * kLanes, padded = core::round_up(features, kLanes);
  for (std::int64_t r = 0; tile.vectors > 0 && r < features; r += kLanes)
    for (std::int64_t v = 0; v < tile.vectors; ++v) {
      Vec block[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i)
        block[i] = r + i < features ? load(sums + (r + i) * wide + v * kLanes) : zero();
      transpose(block);
      for (std::int64_t i = 0; i < kLanes; ++i) store(rows + (v * kLanes + i) * padded + r, block[i]);
    }
  const std::int64_t present = tile.vectors == 0 ? 1 : std::min(wide, tokens - tile.first);
  for (std::int64_t t = 0; t < present; ++t) {
    const float* const from = tile.vectors == 0 ? sums : rows + t * padded;
    T* const to = out + (tile.first + t) * stride + first;
    std::int64_t r = 0;
    for (; r + kLanes <= features; r += kLanes) {
      const Vec y = load(from + r);
      narrow(to + r, bias == nullptr ? y : y + widen(bias + first + r));
    }
    if (const std::int64_t left = features - r; left > 0) {
      const Vec y = load(from + r);
      narrow_first(to + r, bias == nullptr ? y : y + widen_first(bias + first + r, left), left);
    }
  }
}

// Values of a chunk and strip in fp32.
template <class T>
[[gnu::always_inline]] inline const float* widened_values(const T* stored, std::int64_t each, float* wide) {
  if constexpr (sizeof(T) == sizeof(float)) return stored;
  std::int64_t i = 0;
  for (; i + kLanes <= each; i += kLanes) store(wide + i, widen(stored + i));
  if (i < each) store(wide + i, widen_first(stored + i, each - i));
  return wide;
}

// whole (+)= sums, which are then zeroed. `size` may be arbitrary: vectors may use the room past it.
inline void set_aside_chunk(float* sums, float* whole, std::int64_t size, bool first) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(whole + i, first ? load(sums + i) : load(whole + i) + load(sums + i));
    store(sums + i, zero());
  }
}

template <class T>
void grouped_chunk(const cpu::GroupedJob& job, const cpu::TokenTile& tile, std::int64_t chunk,
                   const cpu::Scratch& scratch) {
  const NmgView& w = job.w;
  float *const sums = scratch.sums, *const whole = scratch.whole;
  const std::int64_t chunk_rows = w.chunk_rows(), each = chunk_rows * w.n;
  const std::int64_t tokens = cpu::tokens_of(kLanes, tile.vectors);
  const std::int64_t size = chunk_rows * tokens, most = cpu::strips_at_once(w);
  std::fill_n(sums, core::round_up(size, kLanes), 0.0f);
  for (std::int64_t strip = 0, stop = most; strip < w.strips(); ++strip) {
    if (strip == stop) {
      set_aside_chunk(sums, whole, size, strip == most);
      stop += most;
    }
    const std::int64_t at = chunk * w.strips() + strip;
    const T* const stored = static_cast<const T*>(job.args.values) + at * each;
    const float* const values = widened_values(stored, each, scratch.values);
    const float* const x = tile.x + strip * w.m * tokens;
    const std::int16_t* const order = w.order + at * chunk_rows;
    switch (tile.vectors) {
      case 0:
        if (w.n == 1)
          add_strip_of_one<1>(w, x, values, order, sums);
        else if (w.n == 2)
          add_strip_of_one<2>(w, x, values, order, sums);
        else
          add_strip_of_one<0>(w, x, values, order, sums);
        break;
      case 1: add_strip<1>(w, x, values, order, sums); break;
      case 2: add_strip<2>(w, x, values, order, sums); break;
      case 3: add_strip<3>(w, x, values, order, sums); break;
      default: add_strip<4>(w, x, values, order, sums); break;
    }
  }
  if (w.strips() > most)
    for (std::int64_t i = 0; i < size; i += kLanes) store(sums + i, load(whole + i) + load(sums + i));
  const std::int64_t first = chunk * chunk_rows;
  write_grouped<T>(tile, job.args.m, first, std::min(chunk_rows, w.rows - first),
                   static_cast<const T*>(job.args.bias), static_cast<T*>(job.args.out), job.args.out_stride,
                   sums, scratch.rows);
}
