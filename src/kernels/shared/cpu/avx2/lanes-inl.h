// What the elementwise functions ask of a vector of eight lanes, beside + - * /. Included inside an
// instruction set's region, after avx2/simd.h. Overloaded for sixteen lanes in avx512/lanes-inl.h.

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
