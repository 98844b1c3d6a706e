// Packs the operands of dw: its cells run along columns (tokens), those of pack-inl.h along rows. Included
// inside an instruction set's region, after pack-inl.h.

// Eight cells of one step, from the row of its token and, for pairs, the row after it. At the right edge only
// `n` < 8 of them are valid.
template <class T>
[[gnu::always_inline]] inline void column_cells(const T* row, const T* next, float* out) {
  if constexpr (kDepthStep == 2) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(row)));
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(next)));
    narrow8(out, _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(high, 16))));
  } else {
    narrow8(out, widen8(row));
  }
}
template <class T>
inline void column_cells_first(const T* row, const T* next, std::int64_t n, float* out) {
  T padded[2][8] = {};
  if (n > 0) {
    std::memcpy(static_cast<void*>(padded[0]), row, static_cast<std::size_t>(n) * sizeof(T));
    std::memcpy(static_cast<void*>(padded[1]), next, static_cast<std::size_t>(n) * sizeof(T));
  }
  column_cells(padded[0], padded[1], out);
}

// [token][column] -> [column / piece][step][piece]. Rows are a page or more apart, so 128 columns of a row
// are read together while those of a later row are prefetched. Without the prefetch, packing bf16 waited for
// memory much longer (measured).
template <class T>
void pack_columns_of(const cpu::ColumnPack& p) {
  constexpr std::int64_t kTogether = 128, kAhead = 4;
  constexpr std::int64_t kLine = 64 / sizeof(T);
  alignas(16) static constexpr T kNoToken[kTogether] = {};  // pairs with the last of an odd number of tokens
  const std::int64_t edge = p.columns / 8 * 8;
  for (std::int64_t first = p.begin * p.piece; first < p.end * p.piece; first += kTogether) {
    const std::int64_t last = std::min(p.end * p.piece, first + kTogether);
    for (std::int64_t step = 0; step < p.steps; ++step) {
      const T* row = static_cast<const T*>(p.in) + step * kDepthStep * p.in_stride + first;
      const T* next = kDepthStep * step + 1 < p.tokens ? row + p.in_stride : kNoToken;
      for (std::int64_t c = 0; c < last - first; c += kLine) {
        __builtin_prefetch(row + kAhead * kDepthStep * p.in_stride + c);
        if constexpr (kDepthStep == 2) __builtin_prefetch(row + (kAhead * kDepthStep + 1) * p.in_stride + c);
      }
      for (std::int64_t column = first; column < last; column += 8) {
        float* out = p.out + (column / p.piece * p.steps + step) * p.piece + column % p.piece;
        const std::int64_t at = column - first;
        if (column < edge)
          column_cells(row + at, next + at, out);
        else
          column_cells_first(row + at, next + at, std::max<std::int64_t>(0, p.columns - column), out);
      }
    }
  }
}

void pack_columns(DType dtype, const cpu::ColumnPack& p) {
  if constexpr (kDepthStep == 2)
    return pack_columns_of<cpu::Bf16>(p);
  else
    switch (dtype) {
      case DType::f16: return pack_columns_of<cpu::F16>(p);
      case DType::bf16: return pack_columns_of<cpu::Bf16>(p);
      default: return pack_columns_of<float>(p);
    }
}
