// Activations of one fp32 accumulator, chosen at run time: a uniform switch costs less than five instances of
// every kernel.
//
// Relative error, emulated on the host against fp64: 1.3e-6 for |x| <= 4, and 1e-5 for |x| <= 8, where it
// comes from the large exponents passed to exp and the values are below 1e-12. A NaN stays a NaN. gelu_erf
// takes about 20 instructions, the others fewer than 10; expf, erff and IEEE division would double that, and
// the epilogue of a large product is limited by issue slots. A special function costs several slots, so
// results of 16 bits have a gelu_erf that uses one instead of two.
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/ptx/math.cuh"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::epilogue {

constexpr float kLog2E = 1.4426950409f;

/// x sigmoid(z), given -z. For z <= -87 the quotient is 0, though its value would be below 1e-35.
__device__ __forceinline__ float gated(float x, float minus_z) {
  return x * ptx::rcp_approx(1.0f + ptx::ex2_approx(minus_z * kLog2E));
}

// Not fmaxf, which drops a NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

__device__ __forceinline__ float relu2(float x) { return relu(x) * relu(x); }

__device__ __forceinline__ float silu(float x) { return gated(x, -x); }

// 0.5 x (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kMinusTwoSqrt2OverPi = -2 * 0.7978845608f;
  return gated(x, x * fmaf(x * x, kMinusTwoSqrt2OverPi * 0.044715f, kMinusTwoSqrt2OverPi));
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

// x Phi(x)
__device__ __forceinline__ float gelu_erf(float x) {
  const float tail = normal_tail(x).mass;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// The same for results of 16 bits: Phi(-a) = 2^P(a), where P is fitted to log2 Phi(-a) with weight 1 up to 6
// and .02 up to 13. The relative error is 1.3e-4 up to 6 and 1 % up to 13 (emulated on the host against
// mpmath); beyond 13 the left tail is 0. The form max(x, 0) - a Phi(-a) needs no selection by sign, and a NaN
// passes through the maximum.
__device__ __forceinline__ float gelu_erf_half(float x) {
  const float a = fminf(fabsf(x), 13.0f);
  const float p = polynomial(a, -6.31553671e-07f, 3.02903347e-05f, -6.09911249e-04f, 6.87749473e-03f,
                             -4.96989661e-02f, -4.63775499e-01f, -1.14875916f, -1.00018920f);
  return fmaf(-a, ptx::ex2_approx(p), ptx::max_nan(x, 0.0f));
}

/// Calls use(function) once with the activation. Each activation gets its own copy of the code, since inside
/// loops a selection for each value would cost more than the activation. kHalf: for results of 16 bits.
template <bool kHalf, class Use>
__device__ __forceinline__ void with_activation(Activation activation, Use use) {
  switch (activation) {
    case Activation::none: use([](float v) { return v; }); break;
    case Activation::relu: use([](float v) { return relu(v); }); break;
    case Activation::gelu_erf: use([](float v) { return kHalf ? gelu_erf_half(v) : gelu_erf(v); }); break;
    case Activation::gelu_tanh: use([](float v) { return gelu_tanh(v); }); break;
    case Activation::silu: use([](float v) { return silu(v); }); break;
    case Activation::relu2: use([](float v) { return relu2(v); }); break;
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

}  // namespace sparseloom::kernels::cuda::epilogue
