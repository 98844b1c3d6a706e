// How a vector of dW is filled from two pieces of 8 columns, from two blocks of 8 columns. Included inside a
// region, after vector.h.

struct HalfPieces {
  static constexpr int kPieces = 2;
  [[gnu::always_inline]] static Vec load_at(const float* const* piece, std::int64_t step) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(piece[0] + step * 8)),
                              _mm256_loadu_ps(piece[1] + step * 8), 1);
  }
};
