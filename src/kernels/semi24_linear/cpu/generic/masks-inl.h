// Positions as masks of stored columns. Included inside an AVX-512 region.

// Converts a byte of positions to a byte with a bit for each of its eight columns.
[[gnu::always_inline]] inline void masks_of(const std::uint8_t* positions, std::uint8_t* out) {
  const auto table = [](const std::uint8_t* bytes) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bytes));
  };
  const __m128i bytes = table(positions), half = _mm_set1_epi8(15);
  const __m128i low = _mm_shuffle_epi8(table(cpu::kExpandTables.low), _mm_and_si128(bytes, half));
  const __m128i high =
      _mm_shuffle_epi8(table(cpu::kExpandTables.high), _mm_and_si128(_mm_srli_epi16(bytes, 4), half));
  _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm_or_si128(low, high));
}
