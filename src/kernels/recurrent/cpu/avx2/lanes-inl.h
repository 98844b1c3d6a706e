// The functions of the cells on eight lanes. Included inside AVX2's region, after activation-inl.h.

using F32 = float;
template <class T>
using C = float;  // the dtype of the state

[[gnu::always_inline]] inline Vec8 sigmoid(Vec8 x) {
  return gated(all8(1.0f), _mm256_sub_ps(_mm256_setzero_ps(), x));
}

// Below .625 the odd polynomial of Cephes' tanhf, 3e-7 relative at most; above it 1 - 2 / (1 + e^(2 x)),
// which near zero would lose all digits. A NaN passes through the second.
inline Vec8 tangent(Vec8 x) {
  const Vec8 square = _mm256_mul_ps(x, x);
  Vec8 p = all8(-5.70498872745e-3f);
  for (const float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
    p = _mm256_fmadd_ps(p, square, all8(c));
  const Vec8 small = _mm256_fmadd_ps(_mm256_mul_ps(p, square), x, x);
  const Vec8 large = _mm256_fnmadd_ps(all8(2.0f), gated(all8(1.0f), _mm256_add_ps(x, x)), all8(1.0f));
  const Vec8 magnitude = _mm256_andnot_ps(all8(-0.0f), x);
  return _mm256_blendv_ps(large, small, _mm256_cmp_ps(magnitude, all8(0.625f), _CMP_LT_OQ));
}

template <class T>
struct Lanes {
  static constexpr std::int64_t kUnits = 8;
  [[gnu::always_inline]] static Vec8 zero() { return _mm256_setzero_ps(); }
  [[gnu::always_inline]] static Vec8 load(const T* p, std::int64_t n) {
    return n == kUnits ? widen8(p) : widen8_first(p, n);
  }
  [[gnu::always_inline]] static void store(T* p, Vec8 x, std::int64_t n) {
    if (n == kUnits)
      narrow8(p, x);
    else
      narrow8_first(p, x, n);
  }
};
