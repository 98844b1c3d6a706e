// Packing, included inside a region after vector.h. kDepthStep 1 widens to fp32 cells; 2 keeps bf16 and pairs it up.

// Cells [k, k + kLanes) of one token, of `depth` elements; zero beyond it.
template <class T>
[[gnu::always_inline]] inline Vec row_cells(const T* row, std::int64_t k, std::int64_t depth) {
  if constexpr (kDepthStep == 2) {
    const std::int64_t left = depth - 2 * k;
    if (left >= 2 * kLanes) return load(reinterpret_cast<const cpu::Cell*>(row + 2 * k));
    alignas(64) T padded[2 * kLanes] = {};
    if (left > 0) std::memcpy(static_cast<void*>(padded), row + 2 * k, static_cast<std::size_t>(left) * sizeof(T));
    return load(reinterpret_cast<const cpu::Cell*>(padded));
  } else {
    const std::int64_t left = depth - k;
    return left >= kLanes ? widen(row + k) : left > 0 ? widen_first(row + k, left) : zero();
  }
}

// [token][depth] -> [step][vector][lane]: squares of kLanes tokens x kLanes cells, turned in registers.
template <class T>
void pack_tokens(const cpu::PanelJob& job, const cpu::Pack& p) {
  const std::int64_t row = std::int64_t{p.vectors} * kLanes;
  for (std::int64_t k = p.begin; k < p.end; k += kLanes) {
    const int steps = static_cast<int>(std::min<std::int64_t>(kLanes, p.end - k));
    for (int v = 0; v < p.vectors; ++v) {
      const std::int64_t token = p.token + v * kLanes;
      const std::int64_t valid = job.tokens - token;
      const T* source = static_cast<const T*>(job.in) + token * job.in_stride;
      Vec square[kLanes];
      if (valid >= kLanes) {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) { square[i.value] = row_cells(source + i.value * job.in_stride, k, job.depth); });
      } else {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          square[i.value] = i.value < valid ? row_cells(source + i.value * job.in_stride, k, job.depth) : zero();
        });
      }
      transpose(square);
      float* out = p.panel + k * row + v * kLanes;
      if (steps == kLanes) {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) { store(out + i.value * row, square[i.value]); });
      } else {  // a block of 8 cells' depth at the end of an odd number of them
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          if (i.value < steps) store(out + i.value * row, square[i.value]);
        });
      }
    }
  }
}

void pack_panel(const cpu::PanelJob& job, const cpu::Pack& p) {
  if constexpr (kDepthStep == 2) return pack_tokens<cpu::Bf16>(job, p);
  else
    switch (job.dtype) {
      case DType::f16: return pack_tokens<cpu::F16>(job, p);
      case DType::bf16: return pack_tokens<cpu::Bf16>(job, p);
      default: return pack_tokens<float>(job, p);
    }
}

// Eight columns of one step.
template <class T>
[[gnu::always_inline]] inline void column_cells(const cpu::ColumnPack& p, std::int64_t step, std::int64_t column, float* out) {
  const std::int64_t left = p.columns - column;
  const T* row = static_cast<const T*>(p.in) + step * kDepthStep * p.in_stride + column;
  if constexpr (kDepthStep == 2) {
    alignas(16) T pair[2][8] = {};
    const bool second = 2 * step + 1 < p.tokens;
    if (left > 0) {
      const std::size_t bytes = static_cast<std::size_t>(std::min<std::int64_t>(left, 8)) * sizeof(T);
      if (bytes == sizeof pair[0]) {
        std::memcpy(static_cast<void*>(pair[0]), row, sizeof pair[0]);
        if (second) std::memcpy(static_cast<void*>(pair[1]), row + p.in_stride, sizeof pair[1]);
      } else {
        std::memcpy(static_cast<void*>(pair[0]), row, bytes);
        if (second) std::memcpy(static_cast<void*>(pair[1]), row + p.in_stride, bytes);
      }
    }
    const __m128i a = _mm_load_si128(reinterpret_cast<const __m128i*>(pair[0]));
    const __m128i b = _mm_load_si128(reinterpret_cast<const __m128i*>(pair[1]));
    const __m256i cells = _mm256_setr_m128i(_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
    _mm256_storeu_ps(out, _mm256_castsi256_ps(cells));
  } else {
    narrow8(out, left >= 8 ? widen8(row) : left > 0 ? widen8_first(row, left) : _mm256_setzero_ps());
  }
}

// [token][column] -> [column / piece][step][piece]. Up to 64 columns of a row are read together: a page is touched once for them.
template <class T>
void pack_columns_of(const cpu::ColumnPack& p) {
  const std::int64_t together = std::max(1, 64 / p.piece);
  for (std::int64_t first = p.begin; first < p.end; first += together) {
    const std::int64_t last = std::min(p.end, first + together);
    for (std::int64_t step = 0; step < p.steps; ++step)
      for (std::int64_t piece = first; piece < last; ++piece)
        for (int i = 0; i < p.piece; i += 8)
          column_cells<T>(p, step, piece * p.piece + i, p.out + (piece * p.steps + step) * p.piece + i);
  }
}

void pack_columns(DType dtype, const cpu::ColumnPack& p) {
  if constexpr (kDepthStep == 2) return pack_columns_of<cpu::Bf16>(p);
  else
    switch (dtype) {
      case DType::f16: return pack_columns_of<cpu::F16>(p);
      case DType::bf16: return pack_columns_of<cpu::Bf16>(p);
      default: return pack_columns_of<float>(p);
    }
}
