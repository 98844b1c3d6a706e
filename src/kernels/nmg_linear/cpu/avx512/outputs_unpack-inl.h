// The entries of forward output by output, made for sixteen outputs at a time. Included inside an instruction
// set's region, after its vectors.

// Sixteen outputs: where their values are in a strip, and their patterns.
struct SlotsOf {
  __m512i slot, pattern;

  // Of the inverse order. The halves keep the quotients clear of rounding: slots are below 2^15.
  [[gnu::always_inline]] SlotsOf(const std::uint16_t* inverse, std::int64_t g)
      : slot(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(inverse)))),
        pattern(
            _mm512_cvttps_epi32(_mm512_div_ps(_mm512_add_ps(_mm512_cvtepi32_ps(slot), _mm512_set1_ps(0.5f)),
                                              _mm512_set1_ps(static_cast<float>(g))))) {}
};

// Inverts the orders of some strips: the slot of each output, `wide` outputs a strip. What lies behind stays
// zero. All before the first is read: vectors would wait for stores of single slots.
inline void invert_orders(const std::int16_t* order, std::int64_t strips, std::int64_t chunk_rows,
                          std::int64_t wide, std::uint16_t* inverse) {
  for (std::int64_t strip = 0; strip < strips; ++strip, order += chunk_rows, inverse += wide)
#pragma GCC unroll 8
    for (std::int64_t at = 0; at < chunk_rows; ++at) inverse[order[at]] = static_cast<std::uint16_t>(at);
}

// Floats that a table of `size` needs room for.
inline std::int64_t room_of_table(std::int64_t size) { return core::round_up(size, 2 * kLanes); }

// Values that vectors may be read behind: a copy in `room`, unless their number fills whole vectors of a
// table.
template <class Number>
[[gnu::always_inline]] inline const float* with_room(const Number* values, std::int64_t size, float* room) {
  if (size % (2 * kLanes) == 0) return values;
  std::copy_n(values, size, room);
  return room;
}

// table[index] of `size` floats. A gather takes longer than four permutations of two registers each (Zen 5).
[[gnu::always_inline]] inline Vec look_up(const float* table, std::int64_t size, __m512i index) {
  if (size > 8 * kLanes) return _mm512_i32gather_ps(index, table, sizeof(float));
  Vec found = _mm512_permutex2var_ps(load(table), index, load(table + kLanes));
  for (std::int64_t i = 2 * kLanes; i < size; i += 2 * kLanes) {
    const __mmask16 here = _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32(static_cast<int>(i)));
    const Vec other = _mm512_permutex2var_ps(load(table + i), index, load(table + i + kLanes));
    found = _mm512_mask_mov_ps(found, here, other);
  }
  return found;
}

// Writes an entry of sixteen outputs; of fewer, the rest is overwritten later.
[[gnu::always_inline]] inline void write_entries(__m512i rows, std::int64_t base, Vec weights,
                                                 std::uint16_t* row, float* weight) {
  const __m512i all = _mm512_add_epi32(rows, _mm512_set1_epi32(static_cast<int>(base)));
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(row), _mm512_cvtepi32_epi16(all));
  store(weight, weights);
}

// Rows of single inputs in fp32, of patterns of one place, which are the places.
template <class T>
struct FloatInputs {
  [[gnu::always_inline]] static Vec step(Vec sum, Vec x, Vec weight) { return fma(sum, x, weight); }

  static std::int64_t entries(const NmgView&, std::int64_t strips) { return strips; }

  // Unpacks some strips of a chunk, of which `stored` are the values and `inverse` the slots, `wide` a strip,
  // into entries of `padded` outputs.
  static void unpack(const NmgView& w, const T* stored, const std::uint16_t* inverse, std::int64_t wide,
                     std::int64_t strips, std::int64_t padded, std::uint16_t* row, float* weight,
                     float* room) {
    const std::int64_t chunk_rows = w.chunk_rows();
    for (std::int64_t strip = 0; strip < strips; ++strip, row += padded, weight += padded) {
      const float* values = widened_values(stored + strip * chunk_rows, chunk_rows, room);
      if (sizeof(T) == sizeof(float)) values = with_room(values, chunk_rows, room);  // they are W's own
      for (std::int64_t o = 0; o < chunk_rows; o += kLanes) {
        const SlotsOf of(inverse + strip * wide + o, w.g);
        write_entries(of.pattern, strip * w.m, look_up(values, chunk_rows, of.slot), row + o, weight + o);
      }
    }
  }
  static const float* rows(const NmgView&, const float* x, std::int64_t, std::int64_t, float*) { return x; }
};
