// dW of the grouped kernels: a sum over the tokens for each slot. Included inside an instruction set's
// region, after grouped-inl.h and a struct Cells, which packs tokens into cells and multiplies these.

template <class T>
void pack_grouped_cells(const cpu::TokenMatrix& matrix, const cpu::TokenTile& tile, std::int64_t begin,
                        std::int64_t end) {
  if (tile.vectors == 0) return pack_one<T>(matrix, tile, begin, end);
  pack_tile(
      matrix, tile, begin, end, Cells::kTokens,
      [&](std::int64_t token, std::int64_t feature, std::int64_t inside)
          __attribute__((always_inline)) { return Cells::template pack<T>(matrix, token, feature, inside); });
}

// A pattern's inputs in registers, multiplied with the outputs of kLanes of its slots, which begin at a group
// of values: lane e of the result is the sum of slot e.
template <int kPlaces, int kVectors>
[[gnu::always_inline]] inline Vec slots_of_pattern(const float* x, const std::uint8_t* places,
                                                   const float* dy, const std::int16_t* order) {
  constexpr std::int64_t kCells = kVectors * kLanes;
  Vec inputs[kPlaces][kVectors];
  unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      inputs[i.value][v.value] = load(x + places[i.value] * kCells + v.value * kLanes);
    });
  });
  Vec sums[kLanes];
  unroll<kLanes / kPlaces>(SPARSELOOM_UNROLLED(j) {
    const float* const from = dy + order[j.value] * kCells;
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) { sums[j.value * kPlaces + i.value] = zero(); });
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      const Vec output = load(from + v.value * kLanes);
      unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
        Vec& sum = sums[j.value * kPlaces + i.value];
        sum = Cells::step(sum, output, inputs[i.value][v.value]);
      });
    });
  });
  return sum_lanes(sums);
}

// The same for the slots from `slot` on, of any patterns; `present` of them exist.
template <int kVectors>
[[gnu::noinline]] Vec slots_of_any(const NmgView& w, const float* x, const float* dy,
                                   const std::int16_t* order, std::int64_t slot, std::int64_t present) {
  constexpr std::int64_t kCells = kVectors * kLanes;
  std::int64_t at = slot / w.n, i = slot % w.n, pattern = at / w.g, stop = (pattern + 1) * w.g;
  Vec sums[kLanes];
  for (std::int64_t e = 0; e < kLanes; ++e) {
    sums[e] = zero();
    if (e >= present) continue;
    const float* const input = x + w.places[pattern * w.n + i] * kCells;
    const float* const output = dy + order[at] * kCells;
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      sums[e] = Cells::step(sums[e], load(output + v.value * kLanes), load(input + v.value * kLanes));
    });
    if (++i == w.n) {
      i = 0;
      if (++at == stop) ++pattern, stop += w.g;
    }
  }
  return sum_lanes(sums);
}

// The slots of one strip and chunk.
template <int kPlaces, int kVectors>
void add_slots(const NmgView& w, const float* x, const float* dy, const std::int16_t* order, float* out,
               bool adds) {
  const std::int64_t slots = w.chunk_rows() * w.n;
  const auto write = [&](std::int64_t slot, Vec sums) {
    store(out + slot, adds ? load(out + slot) + sums : sums);
  };
  if constexpr (kPlaces > 0) {
    constexpr std::int64_t kOutputs = kLanes / kPlaces;
    if (w.g % kOutputs == 0) {
      const std::uint8_t* places = w.places;
      std::int64_t slot = 0;
      for (std::int64_t p = 0; p < w.patterns; ++p, places += kPlaces)
        for (std::int64_t j = 0; j < w.g; j += kOutputs, order += kOutputs, slot += kLanes)
          write(slot, slots_of_pattern<kPlaces, kVectors>(x, places, dy, order));
      return;
    }
  }
  std::int64_t slot = 0;
  for (; slot + kLanes <= slots; slot += kLanes)
    write(slot, slots_of_any<kVectors>(w, x, dy, order, slot, kLanes));
  if (const std::int64_t left = slots - slot; left > 0) {
    const Vec sums = slots_of_any<kVectors>(w, x, dy, order, slot, left);
    narrow_first(out + slot, adds ? widen_first(out + slot, left) + sums : sums, left);
  }
}

// Zero in the padding, where the product of a NaN and the zeros of a tile would be NaN.
inline void clear_padding(const NmgView& w, std::int64_t chunk, std::int64_t strip, float* out) {
  const std::int64_t rows = w.rows - chunk * w.chunk_rows(), cols = w.cols - strip * w.m;
  if (rows >= w.chunk_rows() && cols >= w.m) return;
  const std::int16_t* const order = w.order + (chunk * w.strips() + strip) * w.chunk_rows();
  for (std::int64_t at = 0; at < w.chunk_rows(); ++at)
    for (std::int64_t i = 0; i < w.n; ++i)
      if (order[at] >= rows || w.places[at / w.g * w.n + i] >= cols) out[at * w.n + i] = 0;
}

template <int kVectors>
void add_strips(const cpu::GroupedJob& job, const cpu::TokenTile& tile, const float* dy, std::int64_t chunk,
                cpu::Range strips, float* sums, bool adds) {
  const NmgView& w = job.w;
  const std::int64_t chunk_rows = w.chunk_rows();
  const auto add = w.n == 1   ? add_slots<1, kVectors>
                   : w.n == 2 ? add_slots<2, std::min(kVectors, 4)>
                              : add_slots<0, kVectors>;
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    const std::int64_t at = chunk * w.strips() + strip;
    float* const out = sums + at * chunk_rows * w.n;
    add(w, tile.x + strip * w.m * tile.vectors * kLanes, dy, w.order + at * chunk_rows, out, adds);
    clear_padding(w, chunk, strip, out);
  }
}

// One token: each slot is a product of two floats. kPlaces: positions of a pattern, or 0 for any number.
template <int kPlaces>
void add_strips_of_one(const cpu::GroupedJob& job, const cpu::TokenTile& tile, const float* dy,
                       std::int64_t chunk, cpu::Range strips, float* sums, bool adds) {
  const NmgView& w = job.w;
  const std::int64_t chunk_rows = w.chunk_rows(), n = kPlaces > 0 ? kPlaces : w.n;
  for (std::int64_t strip = strips.begin; strip < strips.end; ++strip) {
    const std::int64_t at = chunk * w.strips() + strip;
    const float* const x = tile.x + strip * w.m;
    const std::int16_t* order = w.order + at * chunk_rows;
    const std::uint8_t* places = w.places;
    float* const begin = sums + at * chunk_rows * n;
    float* out = begin;
    for (std::int64_t p = 0; p < w.patterns; ++p, places += n) {
      float inputs[kPlaces > 0 ? kPlaces : 1];
      for (int i = 0; i < kPlaces; ++i) inputs[i] = x[places[i]];
      for (std::int64_t j = 0; j < w.g; ++j, ++order, out += n)
        for (std::int64_t i = 0; i < n; ++i) {
          const float product = dy[*order] * (kPlaces > 0 ? inputs[i] : x[places[i]]);
          out[i] = adds ? out[i] + product : product;
        }
    }
    clear_padding(w, chunk, strip, begin);
  }
}

inline void grouped_dw(const cpu::GroupedJob& job, const cpu::TokenTile& tile, const float* dy,
                       std::int64_t chunk, cpu::Range strips, float* sums, bool adds) {
  constexpr int kMost = kRegisters >= 32 ? 8 : 4;
  const auto of_one = job.w.n == 1   ? add_strips_of_one<1>
                      : job.w.n == 2 ? add_strips_of_one<2>
                                     : add_strips_of_one<0>;
  const auto add = tile.vectors == 0   ? of_one
                   : tile.vectors == 1 ? add_strips<1>
                   : tile.vectors == 2 ? add_strips<2>
                   : tile.vectors == 4 ? add_strips<4>
                                       : add_strips<kMost>;
  add(job, tile, dy, chunk, strips, sums, adds);
}

template <class T>
void write_grouped_dw(const float* sums, std::int64_t begin, std::int64_t end, void* out) {
  T* const to = static_cast<T*>(out);
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) narrow(to + i, load(sums + i));
  if (i < end) narrow_first(to + i, widen_first(sums + i, end - i), end - i);
}

template <class T>
cpu::GroupedOps grouped_ops(Runs* runs) {
  return {runs,
          kLanes,
          Cells::kTokens,
          pack_grouped<T>,
          pack_grouped_cells<T>,
          grouped_chunk<T>,
          grouped_dx<T, FloatSums<T>>,
          nullptr,
          grouped_dw,
          write_grouped_dw<T>};
}
