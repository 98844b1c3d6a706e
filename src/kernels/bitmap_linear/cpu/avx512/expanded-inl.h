// A vector of sixteen columns in fp32, with zeros between. Included inside an instruction set's region, after
// avx512/expand-inl.h.

[[gnu::always_inline]] inline Vec masked(Vec x, unsigned bits) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
}
template <class T>
[[gnu::always_inline]] inline Vec expanded(const T* p, unsigned bits) {
  return _mm512_castsi512_ps(expanded_words(static_cast<__mmask16>(bits), _mm512_castps_si512(widen(p))));
}
