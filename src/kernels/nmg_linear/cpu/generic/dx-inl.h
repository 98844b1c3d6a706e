// dX of the grouped kernels. Included inside an instruction set's region, after grouped-inl.h.

// Sums of kPlaces inputs, kVectors wide, in as many chains as hide the latency of an addition.
template <int kChains, int kPlaces, int kVectors>
struct ChainedSums {
  Vec acc[kChains][kPlaces][kVectors];

  [[gnu::always_inline]] ChainedSums() {
    unroll<kChains>(SPARSELOOM_UNROLLED(c) {
      unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
        unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[c.value][i.value][v.value] = zero(); });
      });
    });
  }
  // Calls add(chain, output) for every kStep-th output.
  template <int kStep>
  [[gnu::always_inline]] static void for_outputs(std::int64_t outputs, auto&& add) {
    std::int64_t j = 0;
    for (; j + kStep * kChains <= outputs; j += kStep * kChains)
      unroll<kChains>(SPARSELOOM_UNROLLED(c) { add(c, j + kStep * c.value); });
    for (; j < outputs; j += kStep) add(std::integral_constant<int, 0>{}, j);
  }
  [[gnu::always_inline]] void add_to(float* sums, const std::uint8_t* places) const {
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
      float* const to = sums + places[i.value] * kVectors * kLanes;
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        Vec sum = acc[0][i.value][v.value];
        unroll<kChains - 1>(SPARSELOOM_UNROLLED(c) { sum = sum + acc[c.value + 1][i.value][v.value]; });
        store(to + v.value * kLanes, load(to + v.value * kLanes) + sum);
      });
    });
  }
};

// Adds the products of up to kOutputsAtOnce outputs of a pattern to the sums of kPlaces of its inputs, which
// are in registers meanwhile. `n`: all its positions.
template <int kPlaces, int kVectors>
void add_outputs(const float* dy, const std::int16_t* order, std::int64_t outputs, const float* values,
                 std::int64_t n, const std::uint8_t* places, float* sums) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  constexpr int kChains = std::max(1, (kRegisters >= 32 ? 8 : 6) / (kPlaces * kVectors));
  ChainedSums<kChains, kPlaces, kVectors> of;
  const auto add = [&](auto c, std::int64_t j) __attribute__((always_inline)) {
    const float* const from = dy + order[j] * kTokens;
    Vec weights[kPlaces];
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) { weights[i.value] = splat(values + j * n + i.value); });
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      const Vec output = load(from + v.value * kLanes);
      unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
        Vec& sum = of.acc[c.value][i.value][v.value];
        sum = fma(sum, output, weights[i.value]);
      });
    });
  };
  of.template for_outputs<1>(outputs, add);
  of.add_to(sums, places);
}

// Sums of a strip's inputs over a chunk. Patterns with more positions than registers hold sums are added in
// several passes.
template <int kVectors>
void add_chunk(const NmgView& w, const float* dy, const float* values, const std::int16_t* order,
               float* sums) {
  constexpr std::int64_t kMost = kRegisters >= 32 ? 4 : 2;
  const std::uint8_t* places = w.places;
  for (std::int64_t p = 0; p < w.patterns; ++p, places += w.n, order += w.g, values += w.g * w.n)
    for (std::int64_t i = 0, step; i < w.n; i += step) {
      const std::int64_t left = w.n - i;
      step = kMost >= 4 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const auto add = step == 4   ? add_outputs<kMost, kVectors>
                       : step == 2 ? add_outputs<2, kVectors>
                                   : add_outputs<1, kVectors>;
      for (std::int64_t j = 0; j < w.g; j += cpu::kOutputsAtOnce)
        add(dy, order + j, std::min(cpu::kOutputsAtOnce, w.g - j), values + j * w.n + i, w.n, places + i,
            sums);
    }
}

// One token: its sums are single floats, each in some chains.
template <int kPlaces>
void add_outputs_of_one(const float* dy, const std::int16_t* order, std::int64_t outputs, const float* values,
                        std::int64_t n, const std::uint8_t* places, float* sums) {
  constexpr int kChains = 4;
  float acc[kPlaces][kChains] = {};
  const auto add = [&](auto c, std::int64_t j) __attribute__((always_inline)) {
    const float output = dy[order[j]];
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
      acc[i.value][c.value] = __builtin_fmaf(output, values[j * n + i.value], acc[i.value][c.value]);
    });
  };
  std::int64_t j = 0;
  for (; j + kChains <= outputs; j += kChains)
    unroll<kChains>(SPARSELOOM_UNROLLED(c) { add(c, j + c.value); });
  for (; j < outputs; ++j) add(std::integral_constant<int, 0>{}, j);
  unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
    const float(&of)[kChains] = acc[i.value];
    sums[places[i.value]] += (of[0] + of[1]) + (of[2] + of[3]);
  });
}

inline void add_chunk_of_one(const NmgView& w, const float* dy, const float* values,
                             const std::int16_t* order, float* sums) {
  const std::uint8_t* places = w.places;
  for (std::int64_t p = 0; p < w.patterns; ++p, places += w.n, order += w.g, values += w.g * w.n)
    for (std::int64_t i = 0, step; i < w.n; i += step) {
      step = w.n - i >= 2 ? 2 : 1;
      const auto add = step == 2 ? add_outputs_of_one<2> : add_outputs_of_one<1>;
      for (std::int64_t j = 0; j < w.g; j += cpu::kOutputsAtOnce)
        add(dy, order + j, std::min(cpu::kOutputsAtOnce, w.g - j), values + j * w.n + i, w.n, places + i,
            sums);
    }
}

// The products of dX in fp32.
template <class T>
struct FloatSums {
  static constexpr std::int64_t kTokensOfCell = 1;
  static const float* values(const NmgView& w, const T* stored, float* wide) {
    return widened_values(stored, w.chunk_rows() * w.n, wide);
  }
  static auto adder(std::int64_t vectors) {
    return vectors == 0   ? add_chunk_of_one
           : vectors == 1 ? add_chunk<1>
           : vectors == 2 ? add_chunk<2>
           : vectors == 3 ? add_chunk<3>
                          : add_chunk<4>;
  }
  static void finish(float*, std::int64_t) {}
};

template <class T, class Sums>
void grouped_dx(const cpu::GroupedJob& job, std::span<const cpu::TokenTile> tiles, cpu::Range strips,
                const cpu::Scratch& scratch) {
  const NmgView& w = job.w;
  const std::int64_t chunk_rows = w.chunk_rows(), each = chunk_rows * w.n;
  const std::int64_t features = (strips.end - strips.begin) * w.m;
  const auto tokens_of = [&](const cpu::TokenTile& tile) {
    return cpu::tokens_of(kLanes, tile.vectors) * Sums::kTokensOfCell;
  };
  std::int64_t t = 0;
  for (const cpu::TokenTile& tile : tiles)
    std::fill_n(scratch.sums + t++ * scratch.of_tile, core::round_up(features * tokens_of(tile), kLanes),
                0.0f);
  for (std::int64_t chunk = 0; chunk < w.chunks(); ++chunk) {
    t = 0;
    for (const cpu::TokenTile& tile : tiles) {
      const std::int64_t tokens = tokens_of(tile), offset = t++ * scratch.of_tile;
      if (chunk > 0 && chunk % cpu::kChunksAtOnce == 0)
        set_aside_chunk(scratch.sums + offset, scratch.whole + offset, features * tokens,
                        chunk == cpu::kChunksAtOnce);
      const float* const dy = tile.x + chunk * chunk_rows * (tokens / Sums::kTokensOfCell);
      const auto add = Sums::adder(tile.vectors);
      for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
        const std::int64_t at = chunk * w.strips() + strip;
        const T* const stored = static_cast<const T*>(job.args.values) + at * each;
        add(w, dy, Sums::values(w, stored, scratch.values), w.order + at * chunk_rows,
            scratch.sums + offset + (strip - strips.begin) * w.m * tokens);
      }
    }
  }
  t = 0;
  const std::int64_t first = strips.begin * w.m;
  for (const cpu::TokenTile& tile : tiles) {
    float *const sums = scratch.sums + t * scratch.of_tile, *const whole =
                                                                scratch.whole + t * scratch.of_tile;
    const std::int64_t size = features * tokens_of(tile);
    ++t;
    if (w.chunks() > cpu::kChunksAtOnce)
      for (std::int64_t i = 0; i < size; i += kLanes) store(sums + i, load(whole + i) + load(sums + i));
    Sums::finish(sums, size);
    write_grouped<T>({tile.first, tile.vectors * Sums::kTokensOfCell, tile.x}, job.args.m, first,
                     std::min(features, w.cols - first), nullptr, static_cast<T*>(job.args.out),
                     job.args.out_stride, sums, scratch.rows);
  }
}
