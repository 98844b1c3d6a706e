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

template <class T>
void pack_x_of_one(const cpu::GroupedJob& job, const cpu::TokenTile& tile) {
  const T* const from = static_cast<const T*>(job.args.a);
  const std::int64_t cols = job.w.cols;
  std::fill_n(tile.x + cols, job.w.strips() * job.w.m - cols, 0.0f);
  std::int64_t col = 0;
  for (; col + kLanes <= cols; col += kLanes) store(tile.x + col, widen(from + col));
  if (col < cols) store(tile.x + col, widen_first(from + col, cols - col));
}

template <class T>
void pack_grouped_x(const cpu::GroupedJob& job, const cpu::TokenTile& tile, std::int64_t begin,
                    std::int64_t end) {
  if (tile.vectors == 0) return pack_x_of_one<T>(job, tile);
  const std::int64_t tokens = tile.vectors * kLanes, cols = job.w.cols;
  for (std::int64_t col = begin * job.w.m; col < end * job.w.m; col += kLanes)
    for (std::int64_t v = 0; v < tile.vectors; ++v) {
      Vec rows[kLanes];
      const std::int64_t inside = std::clamp<std::int64_t>(cols - col, 0, kLanes);
      for (int i = 0; i < kLanes; ++i) {
        const std::int64_t token = tile.first + v * kLanes + i;
        const T* const from = static_cast<const T*>(job.args.a) + token * job.args.a_stride + col;
        rows[i] = token >= job.args.m || inside == 0 ? zero()
                  : inside == kLanes                 ? widen(from)
                                                     : widen_first(from, inside);
      }
      transpose(rows);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, end * job.w.m - col); ++i)
        store(tile.x + (col + i) * tokens + v * kLanes, rows[i]);
    }
}

// Writes the sums of a chunk, [outputs, tokens], as y [tokens, outputs].
template <class T>
void write_grouped(const cpu::GroupedJob& job, const cpu::TokenTile& tile, std::int64_t chunk,
                   const float* sums) {
  const std::int64_t tokens = tile.vectors * kLanes, first = chunk * job.w.chunk_rows();
  const std::int64_t outputs = std::min(job.w.chunk_rows(), job.w.rows - first);
  const T* const bias = static_cast<const T*>(job.args.bias);
  for (std::int64_t r = 0; r < outputs; r += kLanes) {
    const std::int64_t present = std::min<std::int64_t>(kLanes, outputs - r);
    const Vec added = bias == nullptr     ? zero()
                      : present == kLanes ? widen(bias + first + r)
                                          : widen_first(bias + first + r, present);
    const auto write = [&](T* to, Vec y) {
      if (bias != nullptr) y = y + added;
      if (present == kLanes)
        narrow(to, y);
      else
        narrow_first(to, y, present);
    };
    if (tile.vectors == 0) write(static_cast<T*>(job.args.out) + first + r, load(sums + r));
    for (std::int64_t v = 0; v < tile.vectors; ++v) {
      Vec block[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i)
        block[i] = i < present ? load(sums + (r + i) * tokens + v * kLanes) : zero();
      transpose(block);
      const std::int64_t from = tile.first + v * kLanes;
      for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, job.args.m - from); ++i) {
        write(static_cast<T*>(job.args.out) + (from + i) * job.args.out_stride + first + r, block[i]);
      }
    }
  }
}

// whole (+)= sums, which are then zeroed. `size` may be arbitrary: vectors may use the room past it.
inline void set_aside_chunk(float* sums, float* whole, std::int64_t size, bool first) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(whole + i, first ? load(sums + i) : load(whole + i) + load(sums + i));
    store(sums + i, zero());
  }
}

template <class T>
void grouped_chunk(const cpu::GroupedJob& job, const cpu::TokenTile& tile, std::int64_t chunk, float* sums,
                   float* wide) {
  const NmgView& w = job.w;
  const std::int64_t chunk_rows = w.chunk_rows(), each = chunk_rows * w.n;
  const std::int64_t tokens = cpu::tokens_of(kLanes, tile.vectors);
  const std::int64_t size = chunk_rows * tokens, most = cpu::strips_at_once(w);
  float* const whole = sums + cpu::sums_of(kLanes, tile.vectors, w);
  std::fill_n(sums, core::round_up(size, kLanes), 0.0f);
  for (std::int64_t strip = 0, stop = most; strip < w.strips(); ++strip) {
    if (strip == stop) {
      set_aside_chunk(sums, whole, size, strip == most);
      stop += most;
    }
    const std::int64_t at = chunk * w.strips() + strip;
    const T* const stored = static_cast<const T*>(job.args.values) + at * each;
    const float* values = wide;
    if constexpr (sizeof(T) == sizeof(float)) {
      values = stored;
    } else {
      std::int64_t i = 0;
      for (; i + kLanes <= each; i += kLanes) store(wide + i, widen(stored + i));
      if (i < each) store(wide + i, widen_first(stored + i, each - i));
    }
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
  write_grouped<T>(job, tile, chunk, sums);
}
