// Operations on vectors of eight lanes. Included inside an instruction set's region, after unroll-inl.h; the
// AVX-512 regions include it too.

using Vec8 = __m256;

[[gnu::always_inline]] inline Vec8 all8(float x) { return _mm256_set1_ps(x); }

[[gnu::always_inline]] inline Vec8 widen8(const cpu::Cell* p) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}
[[gnu::always_inline]] inline Vec8 widen8(const cpu::F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
[[gnu::always_inline]] inline Vec8 widen8(const cpu::Bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

[[gnu::always_inline]] inline void narrow8(cpu::Cell* p, Vec8 x) {
  _mm256_storeu_ps(reinterpret_cast<float*>(p), x);
}
[[gnu::always_inline]] inline void narrow8(cpu::F16* p, Vec8 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds to nearest even with integer instructions on every machine: VCVTNEPS2BF16 flushes denormals, and a
// single rounding rule is easier to reason about.
[[gnu::always_inline]] inline void narrow8(cpu::Bf16* p, Vec8 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, quiet, is_nan);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), packed);
}

// Load and store the first n < 8 elements. The other lanes are zero when loaded, and are neither read nor
// written in memory.
template <class T>
[[gnu::always_inline]] inline Vec8 widen8_first(const T* p, std::int64_t n) {
  T padded[8] = {};
  std::memcpy(static_cast<void*>(padded), static_cast<const void*>(p),
              static_cast<std::size_t>(n) * sizeof(T));
  return widen8(padded);
}
template <class T>
[[gnu::always_inline]] inline void narrow8_first(T* p, Vec8 x, std::int64_t n) {
  T whole[8];
  narrow8(whole, x);
  std::memcpy(static_cast<void*>(p), static_cast<const void*>(whole),
              static_cast<std::size_t>(n) * sizeof(T));
}

[[gnu::always_inline]] inline void transpose8(Vec8 (&r)[8]) {
  Vec8 t[8];
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    t[2 * i.value] = _mm256_unpacklo_ps(r[2 * i.value], r[2 * i.value + 1]);
    t[2 * i.value + 1] = _mm256_unpackhi_ps(r[2 * i.value], r[2 * i.value + 1]);
  });
  Vec8 u[8];
  unroll<2>(SPARSELOOM_UNROLLED(i) {
    constexpr int j = 4 * i.value;
    u[j] = _mm256_shuffle_ps(t[j], t[j + 2], 0x44);
    u[j + 1] = _mm256_shuffle_ps(t[j], t[j + 2], 0xee);
    u[j + 2] = _mm256_shuffle_ps(t[j + 1], t[j + 3], 0x44);
    u[j + 3] = _mm256_shuffle_ps(t[j + 1], t[j + 3], 0xee);
  });
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    r[i.value] = _mm256_permute2f128_ps(u[i.value], u[i.value + 4], 0x20);
    r[i.value + 4] = _mm256_permute2f128_ps(u[i.value], u[i.value + 4], 0x31);
  });
}

[[gnu::always_inline]] inline float sum8(Vec8 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// What the elementwise functions ask of a vector, beside + - * /; avx512/vector.h has them for sixteen lanes.

// A value in all lanes of a vector like the first.
[[gnu::always_inline]] inline Vec8 like(Vec8, float x) { return _mm256_set1_ps(x); }
// a b + c, and c - a b, with one rounding
[[gnu::always_inline]] inline Vec8 mul_add(Vec8 a, Vec8 b, Vec8 c) { return _mm256_fmadd_ps(a, b, c); }
[[gnu::always_inline]] inline Vec8 negated_mul_add(Vec8 a, Vec8 b, Vec8 c) {
  return _mm256_fnmadd_ps(a, b, c);
}
// The second operand where either is a NaN.
[[gnu::always_inline]] inline Vec8 larger(Vec8 a, Vec8 b) { return _mm256_max_ps(a, b); }
[[gnu::always_inline]] inline Vec8 smaller(Vec8 a, Vec8 b) { return _mm256_min_ps(a, b); }
[[gnu::always_inline]] inline Vec8 magnitude(Vec8 x) { return _mm256_andnot_ps(like(x, -0.0f), x); }
[[gnu::always_inline]] inline Vec8 nearest(Vec8 x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// `negative` where x has the sign bit.
[[gnu::always_inline]] inline Vec8 by_sign(Vec8 x, Vec8 negative, Vec8 positive) {
  return _mm256_blendv_ps(positive, negative, x);
}
// p 2^n for whole n of -150 to 129, which one fp32 exponent does not hold: 2^n is made of two factors.
[[gnu::always_inline]] inline Vec8 times_power(Vec8 p, Vec8 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i k) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, bias), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(whole, half)));
}
