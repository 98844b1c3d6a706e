// Rows of sums in fp32, before they are turned and rounded. Included inside a region, after avx512/vector.h
// and the activations.

inline void widen_bias(const std::uint16_t* bias, std::int64_t n, float* out) {
  const auto* const elements = reinterpret_cast<const cpu::Bf16*>(bias);
  for (std::int64_t i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, widen8_first(elements + i, std::min<std::int64_t>(8, n - i)));
}

// `outputs` of bf16, a line when they are 32. Masked stores of 16-bit elements cost AMD three times a plain
// one, and Intel its forwarding.
[[gnu::always_inline]] inline void store_bf16(std::uint16_t* row, __m512i bits, std::int64_t outputs) {
  outputs == cpu::kTileOutputs ? _mm512_storeu_si512(row, bits)
                               : _mm512_mask_storeu_epi16(row, first32(outputs), bits);
}

template <class Function>
[[gnu::always_inline]] inline void activate_with(float bias, float* row, std::int64_t n, Function act) {
  for (std::int64_t i = 0; i < n; i += 8)
    _mm256_storeu_ps(row + i, act(_mm256_add_ps(_mm256_loadu_ps(row + i), all8(bias))));
}
inline void activate_row(Activation activation, float bias, float* row, std::int64_t n) {
  switch (activation) {
    case Activation::none: return;
    case Activation::relu:
      return activate_with(
          bias, row, n, [&](Vec8 x) __attribute__((always_inline)) { return relu(x); });
    case Activation::gelu_erf:
      return activate_with(
          bias, row, n, [&](Vec8 x) __attribute__((always_inline)) { return gelu_erf(x); });
    case Activation::gelu_tanh:
      return activate_with(
          bias, row, n, [&](Vec8 x) __attribute__((always_inline)) { return gelu_tanh(x); });
    case Activation::silu:
      return activate_with(
          bias, row, n, [&](Vec8 x) __attribute__((always_inline)) { return silu(x); });
  }
}

// Two rows rounded to bf16 as cells (low[i], high[i]). VCVTNE2PS2BF16 flushes denormals where the other
// kernels' rounding keeps them, and is one instruction in place of sixteen.
[[gnu::always_inline]] inline Vec interleave_bf16(Vec low, Vec high) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both));
}
