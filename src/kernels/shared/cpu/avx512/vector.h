// Operations on vectors of sixteen lanes. Included inside an instruction set's region, after avx2/simd.h.

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kTileOutputs = 8;  // 8 x 3 accumulators, 3 inputs and 1 broadcast: 28 of 32 registers
constexpr int kRegisters = 32;

[[gnu::always_inline]] inline Vec zero() { return _mm512_setzero_ps(); }
[[gnu::always_inline]] inline Vec load(const cpu::Cell* p) { return _mm512_loadu_ps(p); }
[[gnu::always_inline]] inline void store(cpu::Cell* p, Vec x) { _mm512_storeu_ps(p, x); }
[[gnu::always_inline]] inline Vec splat(const cpu::Cell* p) { return _mm512_set1_ps(*p); }
[[gnu::always_inline]] inline Vec fma(Vec acc, Vec x, Vec w) { return _mm512_fmadd_ps(x, w, acc); }
[[gnu::always_inline]] inline float sum(Vec x) {
  return sum8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

[[gnu::always_inline]] inline Vec widen(const cpu::Cell* p) { return load(p); }
[[gnu::always_inline]] inline Vec widen(const cpu::F16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
[[gnu::always_inline]] inline Vec widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline Vec widen(const cpu::Bf16* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}

[[gnu::always_inline]] inline __mmask16 first(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
[[gnu::always_inline]] inline Vec widen_first(const cpu::Cell* p, std::int64_t n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
[[gnu::always_inline]] inline Vec widen_first(const cpu::F16* p, std::int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
[[gnu::always_inline]] inline Vec widen_first(const cpu::Bf16* p, std::int64_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
}

[[gnu::always_inline]] inline void narrow(cpu::Cell* p, Vec x) { store(p, x); }
[[gnu::always_inline]] inline void narrow(cpu::F16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds with the same bits as narrow8.
[[gnu::always_inline]] inline void narrow(cpu::Bf16* p, Vec x) {
  const __m512i bits = _mm512_castps_si512(x),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  const __m512i either = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(either, 16)));
}
template <class T>
[[gnu::always_inline]] inline void narrow_first(T* p, Vec x, std::int64_t n) {
  T whole[kLanes];
  narrow(whole, x);
  std::memcpy(static_cast<void*>(p), static_cast<const void*>(whole),
              static_cast<std::size_t>(n) * sizeof(T));
}

// Lane i of the result is the sum of r[i]'s lanes. Each pair of vectors becomes one by two shuffles and an
// addition.
template <Vec (*add)(Vec, Vec)>
[[gnu::always_inline]] inline Vec sum_lanes_by(const Vec (&r)[kLanes]) {
  Vec eight[8], four[4], two[2];
  unroll<8>(SPARSELOOM_UNROLLED(i) {
    const Vec a = r[2 * i.value], b = r[2 * i.value + 1];
    eight[i.value] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  });
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    const Vec a = eight[2 * i.value], b = eight[2 * i.value + 1];
    four[i.value] = add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  });
  // Now each 128-bit quarter holds partial sums of four of the rows.
  unroll<2>(SPARSELOOM_UNROLLED(i) {
    const Vec a = four[2 * i.value], b = four[2 * i.value + 1];
    two[i.value] = add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  });
  return add(_mm512_shuffle_f32x4(two[0], two[1], 0x88), _mm512_shuffle_f32x4(two[0], two[1], 0xdd));
}
[[gnu::always_inline]] inline Vec plus(Vec a, Vec b) { return _mm512_add_ps(a, b); }
[[gnu::always_inline]] inline Vec sum_lanes(const Vec (&r)[kLanes]) { return sum_lanes_by<plus>(r); }

// Transposes sixteen rows of sixteen cells: first 4 x 4 cells inside the 128-bit quarters, then the quarters.
[[gnu::always_inline]] inline void transpose(Vec (&r)[kLanes]) {
  Vec t[16];
  unroll<8>(SPARSELOOM_UNROLLED(i) {
    t[2 * i.value] = _mm512_unpacklo_ps(r[2 * i.value], r[2 * i.value + 1]);
    t[2 * i.value + 1] = _mm512_unpackhi_ps(r[2 * i.value], r[2 * i.value + 1]);
  });
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    constexpr int j = 4 * i.value;
    r[j] = _mm512_shuffle_ps(t[j], t[j + 2], 0x44);
    r[j + 1] = _mm512_shuffle_ps(t[j], t[j + 2], 0xee);
    r[j + 2] = _mm512_shuffle_ps(t[j + 1], t[j + 3], 0x44);
    r[j + 3] = _mm512_shuffle_ps(t[j + 1], t[j + 3], 0xee);
  });
  // r[4 q + i] holds, in quarter l, column 4 l + i of rows 4 q .. 4 q + 3.
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    constexpr int j = i.value;
    t[j] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0x88);           // quarters 0, 2 of rows 0-3 and 4-7
    t[j + 4] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0xdd);       // quarters 1, 3
    t[j + 8] = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0x88);  // the same of rows 8-11 and 12-15
    t[j + 12] = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0xdd);
  });
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    constexpr int j = i.value;
    r[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    r[j + 4] = _mm512_shuffle_f32x4(t[j + 4], t[j + 12], 0x88);
    r[j + 12] = _mm512_shuffle_f32x4(t[j + 4], t[j + 12], 0xdd);
  });
}

// The operations of avx2/simd.h that the elementwise functions ask for.
[[gnu::always_inline]] inline __m512 like(__m512, float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] inline __m512 mul_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m512 negated_mul_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fnmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
[[gnu::always_inline]] inline __m512 smaller(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
[[gnu::always_inline]] inline __m512 magnitude(__m512 x) { return _mm512_andnot_ps(like(x, -0.0f), x); }
[[gnu::always_inline]] inline __m512 nearest(__m512 x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
[[gnu::always_inline]] inline __m512 by_sign(__m512 x, __m512 negative, __m512 positive) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), positive, negative);
}
[[gnu::always_inline]] inline __m512 times_power(__m512 p, __m512 n) { return _mm512_scalef_ps(p, n); }
