// The operations of avx2/lanes-inl.h on sixteen lanes. Included inside an AVX-512 region, after it.

[[gnu::always_inline]] inline __m512 like(__m512, float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] inline __m512 mul_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m512 negated_mul_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fnmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
[[gnu::always_inline]] inline __m512 smaller(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
[[gnu::always_inline]] inline __m512 magnitude(__m512 x) { return _mm512_andnot_ps(like(x, -0.0f), x); }
[[gnu::always_inline]] inline __m512 nearest(__m512 x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
[[gnu::always_inline]] inline __m512 by_sign(__m512 x, __m512 negative, __m512 positive) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), positive, negative);
}
[[gnu::always_inline]] inline __m512 times_power(__m512 p, __m512 n) { return _mm512_scalef_ps(p, n); }
