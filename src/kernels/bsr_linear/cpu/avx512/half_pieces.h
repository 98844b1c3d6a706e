// Fills a vector of dW from two pieces, of two blocks of 8 columns. Included inside a region, after vector.h.

struct HalfPieces {
  static constexpr int kPieces = 2;
  [[gnu::always_inline]] static Vec load_at(const float* const* piece, std::int64_t step) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(piece[0] + step * 8)),
                              _mm256_loadu_ps(piece[1] + step * 8), 1);
  }
  /// dW of few tokens, 8 rows of a block of 8 columns: a vector holds two rows, which lie side by side.
  template <class T>
  [[gnu::always_inline]] static void block_rows(const float* dy, const float* x, std::int64_t steps,
                                                const float* partial, T* out) {
    const __m512i upper = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    Vec acc[4] = {zero(), zero(), zero(), zero()};
    for (std::int64_t t = 0; t < steps; ++t) {
      const Vec column = _mm512_broadcast_f32x8(_mm256_loadu_ps(x + t * 8));
      const Vec rows = _mm512_castps256_ps512(_mm256_loadu_ps(dy + t * 8));
      unroll<4>(SPARSELOOM_UNROLLED(i) {
        const __m512i pair = _mm512_add_epi32(upper, _mm512_set1_epi32(2 * i.value));
        acc[i.value] = Product::step(acc[i.value], column, _mm512_permutexvar_ps(pair, rows));
      });
    }
    unroll<4>(SPARSELOOM_UNROLLED(i) {
      const Vec sum = acc[i.value];
      narrow(out + i.value * kLanes, partial ? load(partial + i.value * kLanes) + sum : sum);
    });
  }
};
