// Activations of one fp32 accumulator and their derivatives, chosen at run time: a uniform switch costs less
// than five instances of every kernel. Each row of the table has a functor.
//
// Relative error of the values, emulated on the host against fp64: 1.3e-6 for |x| <= 4, and 1e-5 for |x| <=
// 8, where it comes from the large exponents passed to exp and the values are below 1e-12. A NaN stays a NaN.
// gelu_erf takes about 20 instructions, the others fewer than 10; expf, erff and IEEE division would double
// that, and the epilogue of a large product is limited by issue slots. A special function costs several
// slots, so results of 16 bits have a gelu_erf that uses one instead of two.
//
// Relu's derivative comes from its output, which the next layer keeps anyway; the others need the
// pre-activation z. Gelu and silu are not monotonic, so their output alone does not determine z. Near their
// minimum, where the slope is 0, it does not even with the branch stored beside it: half a bf16 ulp of the
// output there is 0.02 in z.
//
// Error of the derivatives against fp64, emulated on the host for |z| <= 30: 2e-6 absolute (gelu_tanh), 1e-6
// (silu), 3e-7 (gelu). With erff and expf, issue slots and no longer memory would limit the pass (measured;
// the log has the figures).
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/ptx/math.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::epilogue {

constexpr float kLog2E = 1.4426950409f;

/// x sigmoid(z), given -z. For z <= -87 the quotient is 0, though its value would be below 1e-35.
__device__ __forceinline__ float gated(float x, float minus_z) {
  return x * ptx::rcp_approx(1.0f + ptx::ex2_approx(minus_z * kLog2E));
}

/// Evaluates p x^n + .. by Horner's rule, with the highest coefficient first.
__device__ __forceinline__ float polynomial(float /*x*/, float p) { return p; }
template <class... Rest>
__device__ __forceinline__ float polynomial(float x, float p, float next, Rest... rest) {
  return polynomial(x, fmaf(p, x, next), rest...);
}

struct NormalTail {
  float exponential;  // e^(-x^2 / 2)
  float mass;         // Phi(-|x|)
};

// The polynomial of the CPU kernels: Phi(-a) = e^(-a^2 / 2) t P(t) with t = 1 / (1 + 0.3 a / sqrt 2). This
// form keeps the relative accuracy of the left tail, which 1 + erf(x) loses.
__device__ __forceinline__ NormalTail normal_tail(float x) {
  const float a = fabsf(x);
  const float t = ptx::rcp_approx(fmaf(a, 0.3f * 0.70710678f, 1.0f));
  const float p = polynomial(t, -0.0647703335f, 0.24282828f, -0.256244153f, 0.27399236f, -0.0474271104f,
                             0.107511856f, 0.0741553232f, 0.085359931f, 0.0845938399f);
  const float exponential = ptx::ex2_approx(x * (x * (-0.5f * kLog2E)));
  return {exponential, p * t * exponential};
}

/// The functor of an activation. value(x) is the activation of x. gradient(dy, saved) is dy times its
/// derivative, where `saved` is relu's output, or the pre-activation z for the others. kHalf: for results of
/// 16 bits.
template <Activation kActivation, bool kHalf>
struct Functor;

template <bool kHalf>
struct Functor<Activation::none, kHalf> {
  static __device__ __forceinline__ float value(float x) { return x; }
  static __device__ __forceinline__ float gradient(float dy, float /*z*/) { return dy; }
};

template <bool kHalf>
struct Functor<Activation::relu, kHalf> {
  // Not fmaxf, which drops a NaN.
  static __device__ __forceinline__ float value(float x) { return x < 0.0f ? 0.0f : x; }
  // Same as torch: 0 where the output is 0; a NaN output lets the gradient through.
  static __device__ __forceinline__ float gradient(float dy, float y) { return y <= 0.0f ? 0.0f : dy; }
};

template <>
struct Functor<Activation::gelu_erf, false> {
  // x Phi(x)
  static __device__ __forceinline__ float value(float x) {
    const float tail = normal_tail(x).mass;
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
  // Phi(z) + z phi(z), with a shared exponential
  static __device__ __forceinline__ float gradient(float dy, float z) {
    constexpr float kInverseSqrt2Pi = 0.39894228f;
    const NormalTail tail = normal_tail(z);
    return dy * fmaf(z * kInverseSqrt2Pi, tail.exponential, z < 0.0f ? tail.mass : 1.0f - tail.mass);
  }
};

template <>
struct Functor<Activation::gelu_erf, true> {
  // Phi(-a) = 2^P(a), where P is fitted to log2 Phi(-a) with weight 1 up to 6 and .02 up to 13. The relative
  // error is 1.3e-4 up to 6 and 1 % up to 13 (emulated on the host against mpmath); beyond 13 the left tail
  // is 0. The form max(x, 0) - a Phi(-a) needs no selection by sign, and a NaN passes through the maximum.
  static __device__ __forceinline__ float value(float x) {
    const float a = fminf(fabsf(x), 13.0f);
    const float p = polynomial(a, -6.31553671e-07f, 3.02903347e-05f, -6.09911249e-04f, 6.87749473e-03f,
                               -4.96989661e-02f, -4.63775499e-01f, -1.14875916f, -1.00018920f);
    return fmaf(-a, ptx::ex2_approx(p), ptx::max_nan(x, 0.0f));
  }
  // 1/2 + sign(z) (1/2 - h(|z|)), where h(a) = Phi(-a) - a phi(a) = e^(-a^2 / 2) R(a). R is fitted up to 13,
  // with weight e^(-a^2 / 2) or, in the tail, .003 / R. The error is 1.2e-4 absolute, and 4 % of h between 2
  // and 13 (emulated on the host against mpmath). It takes one special function and 13 instructions instead
  // of two and 20, with which issue slots were nearly the limit; now the pass waits for memory.
  static __device__ __forceinline__ float gradient(float dy, float z) {
    const float a = fminf(fabsf(z), 13.0f);
    const float r = polynomial(a, -5.33008681e-06f, 2.07585737e-04f, -3.10670448e-03f, 2.29276089e-02f,
                               -9.24659766e-02f, 2.29229664e-01f, -7.93892526e-01f, 4.99875798e-01f);
    const float exponential = ptx::ex2_approx(z * (z * (-0.5f * kLog2E)));  // of z, so that a NaN stays one
    return dy * (0.5f + copysignf(fmaf(-exponential, r, 0.5f), z));
  }
};

template <bool kHalf>
struct Functor<Activation::gelu_tanh, kHalf> {
  static constexpr float kTwoSqrt2OverPi = 2 * 0.7978845608f;
  // 0.5 x (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
  static __device__ __forceinline__ float value(float x) {
    return gated(x, x * fmaf(x * x, -kTwoSqrt2OverPi * 0.044715f, -kTwoSqrt2OverPi));
  }
  // z s(v), v = 2 sqrt(2 / pi) (z + 0.044715 z^3):  s + z s (1 - s) v'
  static __device__ __forceinline__ float gradient(float dy, float z) {
    const float square = z * z;
    const float s = gated(1.0f, -z * fmaf(square, kTwoSqrt2OverPi * 0.044715f, kTwoSqrt2OverPi));
    const float slope = fmaf(square, 3 * kTwoSqrt2OverPi * 0.044715f, kTwoSqrt2OverPi);
    return dy * (s * fmaf(z * slope, 1.0f - s, 1.0f));
  }
};

template <bool kHalf>
struct Functor<Activation::silu, kHalf> {
  static __device__ __forceinline__ float value(float x) { return gated(x, -x); }
  // (z s)' = s + z s (1 - s) = s (1 + z (1 - s))
  static __device__ __forceinline__ float gradient(float dy, float z) {
    const float s = gated(1.0f, -z);
    return dy * (s * fmaf(z, 1.0f - s, 1.0f));
  }
};

template <bool kHalf>
struct Functor<Activation::relu2, kHalf> {
  using Relu = Functor<Activation::relu, kHalf>;
  static __device__ __forceinline__ float value(float x) { return Relu::value(x) * Relu::value(x); }
  static __device__ __forceinline__ float gradient(float dy, float z) { return dy * (2.0f * Relu::value(z)); }
};

/// Calls use(function) once with the activation. Each activation gets its own copy of the code, since inside
/// loops a selection for each value would cost more than the activation.
template <bool kHalf, class Use>
__device__ __forceinline__ void with_activation(Activation activation, Use use) {
  switch (activation) {
#define SPARSELOOM_ROW(name, torch_name) \
  case Activation::name: use([](float v) { return Functor<Activation::name, kHalf>::value(v); }); break;
    SPARSELOOM_ACTIVATIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
  }
}

/// x <- activation(x)
template <int kCount>
__device__ __forceinline__ void activate(Activation activation, float (&x)[kCount]) {
  with_activation<false>(activation, [&x](auto function) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = function(x[i]);
  });
}

/// dy <- dy act'(.), where `saved` is relu's output, or the pre-activation for the others. kHalf: for results
/// of 16 bits.
template <bool kHalf, int kCount>
__device__ __forceinline__ void activation_gradient(Activation activation, float (&dy)[kCount],
                                                    const float (&saved)[kCount]) {
  const auto multiply_all = [&](auto functor) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) dy[i] = functor.gradient(dy[i], saved[i]);
  };
  switch (activation) {
#define SPARSELOOM_ROW(name, torch_name) \
  case Activation::name: multiply_all(Functor<Activation::name, kHalf>{}); break;
    SPARSELOOM_ACTIVATIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
  }
}

}  // namespace sparseloom::kernels::cuda::epilogue
