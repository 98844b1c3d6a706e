// Activations, and their gradients, on vectors of eight or sixteen lanes: two functions for each row of the
// table, under the row's name and with _dz. Included inside an instruction set's region, after its lanes. To
// a few ulp; gelu_erf_half is for results of 16 bits. A NaN stays a NaN: larger and smaller return their
// second operand when either is a NaN, so x is always the second.

// Evaluates coefficients, the highest first, by Horner's rule.
template <class V, int kCount>
[[gnu::always_inline]] inline V polynomial(V x, const float (&coefficients)[kCount]) {
  V p = like(x, coefficients[0]);
  unroll<kCount - 1>(SPARSELOOM_UNROLLED(i) { p = mul_add(p, x, like(x, coefficients[i.value + 1])); });
  return p;
}

// e^x = 2^n e^r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), where p is a minimax fit of degree 4 with relative
// error 3e-9. Overflows to inf.
template <class V>
inline V exponential(V x) {
  // beyond these the result is 0 or inf anyway
  x = larger(like(x, -104.0f), smaller(like(x, 89.5f), x));
  const V n = nearest(x * like(x, 1.44269504f));
  V r = negated_mul_add(n, like(x, 0.693145752f), x);  // ln 2 has two parts; n times the first is exact
  r = negated_mul_add(n, like(x, 1.42860677e-6f), r);
  const V p = polynomial(r, {0.0013814539415761828f, 0.00836874544620514f, 0.04166838899254799f,
                             0.1666652113199234f, 0.4999999403953552f});
  return times_power(like(x, 1.0f) + mul_add(p * r, r, r), n);
}

template <class V>
[[gnu::always_inline]] inline V relu(V x) {
  return larger(like(x, 0.0f), x);
}

template <class V>
[[gnu::always_inline]] inline V relu2(V x) {
  const V positive = relu(x);
  return positive * positive;
}

// x sigmoid(z)
template <class V>
[[gnu::always_inline]] inline V gated(V x, V minus_z) {
  return x / (like(x, 1.0f) + exponential(minus_z));
}

template <class V>
inline V silu(V x) {
  return gated(x, like(x, 0.0f) - x);
}

// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
template <class V>
inline V gelu_tanh(V x) {
  const V cubic = mul_add(x * x, like(x, -2 * 0.7978845608f * 0.044715f), like(x, -2 * 0.7978845608f));
  return gated(x, x * cubic);
}

// Phi(-a) e^(a^2 / 2) for a = |x|: t P(t), t = 1 / (1 + 0.3 a / sqrt 2), where P is a minimax fit of degree 8
// with relative error 2e-8. In this form the left tail keeps its relative accuracy, which 1 + erf(x) loses.
template <class V>
[[gnu::always_inline]] inline V upper_tail(V x) {
  const V one = like(x, 1.0f), t = one / mul_add(magnitude(x), like(x, 0.3f * 0.70710678f), one);
  return t * polynomial(t, {-0.0647703335f, 0.24282828f, -0.256244153f, 0.27399236f, -0.0474271104f,
                            0.107511856f, 0.0741553232f, 0.085359931f, 0.0845938399f});
}

// x Phi(x)
template <class V>
inline V gelu_erf(V x) {
  const V tail = upper_tail(x) * exponential(x * x * like(x, -0.5f));
  return x * by_sign(x, tail, like(x, 1.0f) - tail);
}

// max(x, 0) - a Phi(-a) for a = |x|, where Phi(-a) = 2^P(a): a fit of log2 Phi(-a) with weight 1 up to 6 and
// .01 up to 13, 2e-5 and 2e-3 relative (the left tail beyond 13 is 0), and one of 2^r, 3e-6. Less than half
// of gelu_erf's instructions, and no division.
template <class V>
inline V gelu_erf_half(V x) {
  const V a = smaller(like(x, 13.0f), magnitude(x));
  const V p = polynomial(
      a, {4.978968328e-08f, -2.784861125e-06f, 6.719686404e-05f, -9.313900306e-04f, 8.397061714e-03f,
          -5.353664792e-02f, -4.590710137e-01f, -1.150940991e+00f, -1.000024418e+00f});
  const V n = nearest(p);
  const V power = polynomial(
      p - n, {9.570101802e-03f, 5.591786192e-02f, 2.402474484e-01f, 6.931218145e-01f, 9.999992614e-01f});
  return negated_mul_add(a, times_power(power, n), relu(x));
}

// The gradients, dz = dy act'(z), under the row's name and _dz; relu's reads y, which is equivalent.

// Like torch's threshold_backward: a NaN in y lets dy through.
[[gnu::always_inline]] inline Vec8 relu_dz(Vec8 dy, Vec8 y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_LE_OQ), dy);
}

template <class V>
[[gnu::always_inline]] inline V relu2_dz(V dy, V z) {
  return dy * (like(z, 2.0f) * relu(z));
}

// s (1 + u (1 - s)): the derivative of z s(z) for s the sigmoid of something whose derivative times z is u.
template <class V>
[[gnu::always_inline]] inline V gated_dz(V dy, V s, V u) {
  const V one = like(s, 1.0f);
  return dy * (s * mul_add(u, one - s, one));
}

template <class V>
inline V silu_dz(V dy, V z) {
  return gated_dz(dy, gated(like(z, 1.0f), like(z, 0.0f) - z), z);
}

// s is the sigmoid of 2 sqrt(2 / pi) (z + 0.044715 z^3).
template <class V>
inline V gelu_tanh_dz(V dy, V z) {
  constexpr float k = 2 * 0.7978845608f, cubic = 0.044715f;
  const V square = z * z;
  const V minus = z * mul_add(square, like(z, -k * cubic), like(z, -k));
  const V u = z * mul_add(square, like(z, 3 * k * cubic), like(z, k));
  return gated_dz(dy, gated(like(z, 1.0f), minus), u);
}

// Phi(z) + z phi(z). Phi as in gelu_erf.
template <class V>
inline V gelu_erf_dz(V dy, V z) {
  const V density = exponential(z * z * like(z, -0.5f));
  const V tail = upper_tail(z) * density;
  const V phi = by_sign(z, tail, like(z, 1.0f) - tail);
  return dy * mul_add(z * density, like(z, 0.39894228f), phi);
}

// Calls use(function) with any activation but `none`, a function of vectors: each gets its own copy of the
// code. kHalf: for results of 16 bits. [&], though nothing is captured: without it g++ also makes a plain
// function, outside of the region.
template <bool kHalf, class Use>
[[gnu::always_inline]] inline void with_activation(Activation activation, Use use) {
  if constexpr (kHalf)
    if (activation == Activation::gelu_erf)
      return use([&](auto x) __attribute__((always_inline)) { return gelu_erf_half(x); });
  switch (activation) {
    case Activation::none: return;
#define SPARSELOOM_ROW(name, torch_name) \
  case Activation::name: return use([&](auto x) __attribute__((always_inline)) { return name(x); });
      SPARSELOOM_ACTIVATION_FUNCTIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
  }
}
