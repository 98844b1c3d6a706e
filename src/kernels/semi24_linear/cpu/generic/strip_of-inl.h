// Eight columns of a row of W in a register. Included inside an instruction set's region, after avx2/simd.h
// and lanes_of_pairs.h.

// For each byte of positions, which of four stored values and four zeros its two groups' columns have. Whole
// indices take 8 kB of L1; bytes would have to be widened for each.
constexpr auto kIndexOf = cpu::lanes_of_pairs<std::int32_t>();

// The stored values of two groups, widened; of one group if they are the row's last.
[[gnu::always_inline]] inline __m128 stored(const float* p) { return _mm_loadu_ps(p); }
[[gnu::always_inline]] inline __m128 stored(const cpu::F16* p) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)));
}
[[gnu::always_inline]] inline __m128 stored(const cpu::Bf16* p) {
  return _mm_castsi128_ps(
      _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p))), 16));
}

// Eight columns of a row. kWhole: both groups are there; behind a row's end is the next row, or nothing.
template <bool kWhole, class T>
[[gnu::always_inline]] inline Vec8 strip_of(const T* values, unsigned positions) {
  T pair[4] = {};
  if constexpr (!kWhole) {
    std::memcpy(static_cast<void*>(pair), static_cast<const void*>(values), 2 * sizeof(T));
    values = pair;
  }
  const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(kIndexOf[positions].data()));
  return _mm256_permutevar8x32_ps(_mm256_zextps128_ps256(stored(values)), index);
}
