// Gathers of sixteen lanes. Included inside the region, after vector.h.

[[gnu::always_inline]] inline Vec gather(const float* x, const std::int32_t* col) {
  return _mm512_i32gather_ps(_mm512_loadu_si512(col), x, 4);
}
// The first n < 16 lanes; the others are zero and read nothing.
[[gnu::always_inline]] inline Vec gather_first(const float* x, const std::int32_t* col, std::int64_t n) {
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), first(n), _mm512_maskz_loadu_epi32(first(n), col), x,
                                  4);
}
