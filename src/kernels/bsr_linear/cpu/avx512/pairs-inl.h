// Interleaves pairs of rows of 16-bit elements, and transposes squares of cells. Included inside a region,
// after vector.h.

[[gnu::always_inline]] inline __mmask32 first32(std::int64_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : static_cast<__mmask32>((1u << n) - 1);
}
[[gnu::always_inline]] inline __mmask16 first16(std::int64_t n) { return static_cast<__mmask16>(first32(n)); }

// Makes two tiles of cells from up to 32 rows x 32 columns of a matrix: cell (i, j) of the first holds rows 2
// i and 2 i + 1 at column j, that of the second the same rows at column 16 + j. Cells past the edges are
// zero, and nothing is read there. Both tiles are made at once, so that each cache line is fetched once: rows
// a page apart evict one another from L1. `next` points at the rows that a later call reads, to prefetch
// them.
inline void pair_rows(const std::uint16_t* in, const std::uint16_t* next, std::int64_t stride,
                      std::int64_t rows, std::int64_t columns, float* first, float* second) {
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __mmask32 mask = first32(columns);
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::uint16_t* upper = in + 2 * i * stride;
    if (2 * i < rows) __builtin_prefetch(next + 2 * i * stride);
    if (2 * i + 1 < rows) __builtin_prefetch(next + (2 * i + 1) * stride);
    const __m512i a = 2 * i < rows ? _mm512_maskz_loadu_epi16(mask, upper) : _mm512_setzero_si512();
    const __m512i b =
        2 * i + 1 < rows ? _mm512_maskz_loadu_epi16(mask, upper + stride) : _mm512_setzero_si512();
    const __m512i low = _mm512_unpacklo_epi16(a, b),
                  high = _mm512_unpackhi_epi16(a, b);  // columns 0-3 and 4-7 of each 128-bit quarter
    store(first + i * kLanes, _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, left, high)));
    store(second + i * kLanes, _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, right, high)));
  }
}

// Transposes sixteen rows of sixteen cells, and stores the first `cells` cells of the first `rows` results.
[[gnu::always_inline]] inline void turn_cells(const float* in, std::int64_t rows, std::int64_t cells,
                                              float* out, std::int64_t stride) {
  Vec square[kLanes];
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { square[i.value] = load(in + i.value * kLanes); });
  transpose(square);
  const __mmask16 mask = first16(cells);
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
    if (i.value < rows) _mm512_mask_storeu_ps(out + i.value * stride, mask, square[i.value]);
  });
}
