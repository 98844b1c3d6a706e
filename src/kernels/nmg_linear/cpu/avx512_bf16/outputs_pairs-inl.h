// Forward output by output by VDPBF16PS: rows of two inputs. Included inside the instruction set's region,
// after outputs-inl.h and outputs_unpack-inl.h.

// Pairs of two places of a pattern (n of 2), or of a place of each of two strips (n of 1).
struct PairInputs {
  [[gnu::always_inline]] static Vec step(Vec sum, Vec x, Vec weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(weight));
  }

  static std::int64_t entries(const NmgView& w, std::int64_t strips) {
    return w.n == 2 ? strips : (strips + 1) / 2;
  }

  static void unpack(const NmgView& w, const cpu::Bf16* stored, const std::uint16_t* inverse,
                     std::int64_t wide, std::int64_t strips, std::int64_t padded, std::uint16_t* row,
                     float* weight, float* room) {
    const auto unpack = w.n == 2 ? unpack_patterns : unpack_strips;
    unpack(w, stored, inverse, wide, strips, padded, row, weight, room);
  }

  static void unpack_patterns(const NmgView& w, const cpu::Bf16* stored, const std::uint16_t* inverse,
                              std::int64_t wide, std::int64_t strips, std::int64_t padded, std::uint16_t* row,
                              float* weight, float* room) {
    const std::int64_t chunk_rows = w.chunk_rows();
    for (std::int64_t strip = 0; strip < strips; ++strip, row += padded, weight += padded) {
      const auto* const cells = reinterpret_cast<const cpu::Cell*>(stored + 2 * strip * chunk_rows);
      const float* const pairs = with_room(cells, chunk_rows, room);
      for (std::int64_t o = 0; o < chunk_rows; o += kLanes) {
        const SlotsOf of(inverse + strip * wide + o, w.g);
        write_entries(of.pattern, strip * w.patterns, look_up(pairs, chunk_rows, of.slot), row + o,
                      weight + o);
      }
    }
  }

  // The patterns of one place are the places.
  static void unpack_strips(const NmgView& w, const cpu::Bf16* stored, const std::uint16_t* inverse,
                            std::int64_t wide, std::int64_t strips, std::int64_t padded, std::uint16_t* row,
                            float* weight, float* room) {
    const std::int64_t chunk_rows = w.chunk_rows(), m = w.m;
    const __m512i places = _mm512_set1_epi32(static_cast<int>(m));
    float *const values = room, *const others = room + room_of_table(chunk_rows);
    for (std::int64_t strip = 0; strip < strips; strip += 2, row += padded, weight += padded) {
      const bool two = strip + 1 < strips;
      static_cast<void>(widened_values(stored + strip * chunk_rows, chunk_rows, values));
      if (two) static_cast<void>(widened_values(stored + (strip + 1) * chunk_rows, chunk_rows, others));
      for (std::int64_t o = 0; o < chunk_rows; o += kLanes) {
        const SlotsOf of(inverse + strip * wide + o, w.g);
        __m512i rows = _mm512_mullo_epi32(of.pattern, places);
        __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(look_up(values, chunk_rows, of.slot)), 16);
        if (two) {
          const SlotsOf other(inverse + (strip + 1) * wide + o, w.g);
          rows = _mm512_add_epi32(rows, other.pattern);
          bits = _mm512_or_si512(bits, _mm512_castps_si512(look_up(others, chunk_rows, other.slot)));
        }
        write_entries(rows, strip / 2 * m * m, _mm512_castsi512_ps(bits), row + o, weight + o);
      }
    }
  }

  // The lower of a pair is the first. Inputs are bf16 in fp32, with zeros below.
  static const float* rows(const NmgView& w, const float* x, std::int64_t strips, std::int64_t vectors,
                           float* pairs) {
    const std::int64_t wide = vectors * kLanes, strip = w.m * wide;
    float* to = pairs;
    const auto add = [&](const float* low, const float* high) {
      for (std::int64_t v = 0; v < wide; v += kLanes, to += kLanes) {
        const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(load(low + v)), 16);
        const __m512i second = high == nullptr ? _mm512_setzero_si512() : _mm512_castps_si512(load(high + v));
        store(to, _mm512_castsi512_ps(_mm512_or_si512(first, second)));
      }
    };
    for (std::int64_t s = 0; s < strips; s += w.n == 2 ? 1 : 2, x += w.n == 2 ? strip : 2 * strip)
      if (w.n == 2) {
        for (std::int64_t p = 0; p < w.patterns; ++p)
          add(x + w.places[2 * p] * wide, x + w.places[2 * p + 1] * wide);
      } else {
        for (std::int64_t low = 0; low < w.m; ++low)
          for (std::int64_t p = 0; p < w.m; ++p)
            add(x + low * wide, s + 1 < strips ? x + strip + p * wide : nullptr);
      }
    return pairs;
  }
};
