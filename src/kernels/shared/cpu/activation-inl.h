// Activations on eight lanes, to a few ulp, and their gradients: two functions of Vec8 for each row of the
// table, under the row's name and with _dz. Included inside an instruction set's region, after avx2/simd.h. A
// NaN stays a NaN: min and max return their second operand when either is a NaN, so x is always the second.

[[gnu::always_inline]] inline Vec8 all8(float x) { return _mm256_set1_ps(x); }

// e^x = 2^n e^r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), where p is a minimax fit of degree 4 with relative
// error 3e-9. Overflows to inf.
inline Vec8 exp8(Vec8 x) {
  x = _mm256_max_ps(all8(-104.0f),
                    _mm256_min_ps(all8(89.5f), x));  // beyond these the result is 0 or inf anyway
  const Vec8 n =
      _mm256_round_ps(_mm256_mul_ps(x, all8(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Vec8 r = _mm256_fnmadd_ps(n, all8(0.693145752f), x);  // ln 2 has two parts; n times the first is exact
  r = _mm256_fnmadd_ps(n, all8(1.42860677e-6f), r);
  Vec8 p = all8(0.0013814539415761828f);
  p = _mm256_fmadd_ps(p, r, all8(0.00836874544620514f));
  p = _mm256_fmadd_ps(p, r, all8(0.04166838899254799f));
  p = _mm256_fmadd_ps(p, r, all8(0.1666652113199234f));
  p = _mm256_fmadd_ps(p, r, all8(0.4999999403953552f));
  p = _mm256_add_ps(all8(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r));
  // 2^n is made of two factors, because n reaches -150 and 129, which one fp32 exponent does not hold.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i k) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, bias), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(whole, half)));
}

[[gnu::always_inline]] inline Vec8 relu(Vec8 x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }

[[gnu::always_inline]] inline Vec8 relu2(Vec8 x) {
  const Vec8 positive = relu(x);
  return _mm256_mul_ps(positive, positive);
}

// x sigmoid(z)
[[gnu::always_inline]] inline Vec8 gated(Vec8 x, Vec8 minus_z) {
  return _mm256_div_ps(x, _mm256_add_ps(all8(1.0f), exp8(minus_z)));
}

inline Vec8 silu(Vec8 x) { return gated(x, _mm256_sub_ps(_mm256_setzero_ps(), x)); }

// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
inline Vec8 gelu_tanh(Vec8 x) {
  const Vec8 cubic =
      _mm256_fmadd_ps(_mm256_mul_ps(x, x), all8(-2 * 0.7978845608f * 0.044715f), all8(-2 * 0.7978845608f));
  return gated(x, _mm256_mul_ps(x, cubic));
}

// Phi(-a) e^(a^2 / 2) for a = |x|: t P(t), t = 1 / (1 + 0.3 a / sqrt 2), where P is a minimax fit of degree 8
// with relative error 2e-8. In this form the left tail keeps its relative accuracy, which 1 + erf(x) loses.
[[gnu::always_inline]] inline Vec8 upper_tail(Vec8 x) {
  const Vec8 a = _mm256_andnot_ps(all8(-0.0f), x);
  const Vec8 t = _mm256_div_ps(all8(1.0f), _mm256_fmadd_ps(a, all8(0.3f * 0.70710678f), all8(1.0f)));
  Vec8 p = all8(-0.0647703335f);
  for (const float c : {0.24282828f, -0.256244153f, 0.27399236f, -0.0474271104f, 0.107511856f, 0.0741553232f,
                        0.085359931f, 0.0845938399f})
    p = _mm256_fmadd_ps(p, t, all8(c));
  return _mm256_mul_ps(p, t);
}

// x Phi(x)
inline Vec8 gelu_erf(Vec8 x) {
  const Vec8 tail = _mm256_mul_ps(upper_tail(x), exp8(_mm256_mul_ps(_mm256_mul_ps(x, x), all8(-0.5f))));
  return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(all8(1.0f), tail), tail, x));
}

// The gradients, dz = dy act'(z), under the row's name and _dz; relu's reads y, which is equivalent.

// Like torch's threshold_backward: a NaN in y lets dy through.
[[gnu::always_inline]] inline Vec8 relu_dz(Vec8 dy, Vec8 y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_LE_OQ), dy);
}

[[gnu::always_inline]] inline Vec8 relu2_dz(Vec8 dy, Vec8 z) {
  return _mm256_mul_ps(dy, _mm256_mul_ps(all8(2.0f), relu(z)));
}

// s (1 + u (1 - s)): the derivative of z s(z) for s the sigmoid of something whose derivative times z is u.
[[gnu::always_inline]] inline Vec8 gated_dz(Vec8 dy, Vec8 s, Vec8 u) {
  const Vec8 one = all8(1.0f);
  return _mm256_mul_ps(dy, _mm256_mul_ps(s, _mm256_fmadd_ps(u, _mm256_sub_ps(one, s), one)));
}

inline Vec8 silu_dz(Vec8 dy, Vec8 z) {
  return gated_dz(dy, gated(all8(1.0f), _mm256_sub_ps(_mm256_setzero_ps(), z)), z);
}

// s is the sigmoid of 2 sqrt(2 / pi) (z + 0.044715 z^3).
inline Vec8 gelu_tanh_dz(Vec8 dy, Vec8 z) {
  constexpr float k = 2 * 0.7978845608f, cubic = 0.044715f;
  const Vec8 square = _mm256_mul_ps(z, z);
  const Vec8 minus = _mm256_mul_ps(z, _mm256_fmadd_ps(square, all8(-k * cubic), all8(-k)));
  const Vec8 u = _mm256_mul_ps(z, _mm256_fmadd_ps(square, all8(3 * k * cubic), all8(k)));
  return gated_dz(dy, gated(all8(1.0f), minus), u);
}

// Phi(z) + z phi(z). Phi as in gelu_erf.
inline Vec8 gelu_erf_dz(Vec8 dy, Vec8 z) {
  const Vec8 density = exp8(_mm256_mul_ps(_mm256_mul_ps(z, z), all8(-0.5f)));
  const Vec8 tail = _mm256_mul_ps(upper_tail(z), density);
  const Vec8 phi = _mm256_blendv_ps(_mm256_sub_ps(all8(1.0f), tail), tail, z);
  const Vec8 slope = _mm256_fmadd_ps(_mm256_mul_ps(z, density), all8(0.39894228f), phi);
  return _mm256_mul_ps(dy, slope);
}

// Calls use(function) with any activation but `none`, a function of Vec8: each gets its own copy of the code.
// [&], though nothing is captured: without it g++ also makes a plain function, outside of the region.
template <class Use>
[[gnu::always_inline]] inline void with_activation(Activation activation, Use use) {
  switch (activation) {
    case Activation::none: return;
#define SPARSELOOM_ROW(name, torch_name) \
  case Activation::name: return use([&](Vec8 x) __attribute__((always_inline)) { return name(x); });
      SPARSELOOM_ACTIVATION_FUNCTIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
  }
}
