// The epilogue's operations on rows of sums: bias, activation, rounding and store. Included inside a region,
// after avx512/vector.h, avx512/pairs-inl.h and the activations.

inline void widen_bias(const std::uint16_t* bias, std::int64_t n, float* out) {
  const auto* const elements = reinterpret_cast<const cpu::Bf16*>(bias);
  for (std::int64_t i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, widen8_first(elements + i, std::min<std::int64_t>(8, n - i)));
}

// Stores `outputs` bf16, a cache line when they are 32. Then the store is not masked: a masked store of
// 16-bit elements costs three plain ones on AMD, and store forwarding on Intel.
[[gnu::always_inline]] inline void store_bf16(std::uint16_t* row, __m512i bits, std::int64_t outputs) {
  outputs == cpu::kTileOutputs ? _mm512_storeu_si512(row, bits)
                               : _mm512_mask_storeu_epi16(row, first32(outputs), bits);
}

// Activates sums [output][vector][lane] plus a bias for each output, in place. kHalf: of results of 16 bits.
// All outputs in one call, which loads the function's constants once.
template <bool kHalf, int kVectors>
inline void activate_sums(Activation activation, const float* bias, float* sums, std::int64_t outputs) {
  with_activation<kHalf>(
      activation, [&](auto function) __attribute__((always_inline)) {
        for (std::int64_t o = 0; o < outputs; ++o)
          unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
            float* const at = sums + (o * kVectors + v.value) * kLanes;
            store(at, function(_mm512_add_ps(load(at), _mm512_set1_ps(bias[o]))));
          });
      });
}

// Rounds two rows to bf16, as cells (low[i], high[i]). VCVTNE2PS2BF16 is one instruction in place of sixteen,
// but flushes denormals, which the other kernels' rounding keeps.
[[gnu::always_inline]] inline Vec interleave_bf16(Vec low, Vec high) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both));
}
