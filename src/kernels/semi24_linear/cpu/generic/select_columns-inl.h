// Select<T> for products in fp32: each stored element picks one of its group's four columns. Included inside
// an instruction set's region, after vector.h.
template <class T>
struct Select {
  static constexpr int kChoices = 4, kPicks = 2;

  static void pack(const T* four, std::uint32_t* out, std::int64_t stride) {
    for (int i = 0; i < 4; ++i) {
      float x;
      if constexpr (std::is_same_v<T, float>)
        x = four[i];
      else
        x = core::to_f32(four[i]);
      std::memcpy(out + i * stride, &x, sizeof x);
    }
  }

  template <int kShift>
  [[gnu::always_inline]] static void offsets(const std::uint8_t* positions, std::uint16_t* out) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(positions)),
                  two = _mm_set1_epi8(3);
    const auto field = [&](int bits) __attribute__((always_inline)) {
      return _mm_and_si128(_mm_srli_epi16(bytes, bits), two);
    };
    const __m128i even = _mm_unpacklo_epi8(field(0), field(2)), odd = _mm_unpacklo_epi8(field(4), field(6));
    const auto put = [&](__m128i picks, int at) __attribute__((always_inline)) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + at),
                         _mm256_slli_epi16(_mm256_cvtepu8_epi16(picks), kShift));
    };
    put(_mm_unpacklo_epi16(even, odd), 0), put(_mm_unpackhi_epi16(even, odd), 16);
  }

  struct Values {
    alignas(64) float all[2 * cpu::kSelectGroups];
    [[gnu::always_inline]] explicit Values(const T* values) {
      unroll<2 * cpu::kSelectGroups / kLanes>(
          SPARSELOOM_UNROLLED(i) { store(all + i.value * kLanes, widen(values + i.value * kLanes)); });
    }
    [[gnu::always_inline]] Vec at(int pick) const { return splat(all + pick); }
  };
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
};
