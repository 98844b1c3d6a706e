// Gathers of eight lanes. Included inside the region, after vector.h.

[[gnu::always_inline]] inline Vec gather(const float* x, const std::int32_t* col) {
  return _mm256_i32gather_ps(x, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(col)), 4);
}
// The first n < 8 lanes; the others are zero and read nothing.
[[gnu::always_inline]] inline Vec gather_first(const float* x, const std::int32_t* col, std::int64_t n) {
  alignas(32) float picked[8] = {};
  for (std::int64_t i = 0; i < n; ++i) picked[i] = x[col[i]];
  return load(picked);
}
