// Derivatives of the activations in fp32, chosen at run time as in activation.cuh and built from the same
// parts.
//
// Relu's derivative comes from its output, which the next layer keeps anyway; the others need the
// pre-activation z. Gelu and silu are not monotonic, so their output alone does not determine z. Near their
// minimum, where the slope is 0, it does not even with the branch stored beside it: half a bf16 ulp of the
// output there is 0.02 in z.
//
// Error against fp64, emulated on the host for |z| <= 30: 2e-6 absolute (gelu_tanh), 1e-6 (silu), 3e-7
// (gelu). With erff and expf, issue slots and no longer memory would limit the pass (measured; the log has
// the figures).
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/epilogue/activation.cuh"

namespace sparseloom::kernels::cuda::epilogue {

/// Same as torch: 0 where the output is 0; a NaN output lets the gradient through.
__device__ __forceinline__ float relu_gradient(float dy, float y) { return y <= 0.0f ? 0.0f : dy; }

// (z s)' = s + z s (1 - s) = s (1 + z (1 - s))
__device__ __forceinline__ float silu_gradient(float z) {
  const float s = gated(1.0f, -z);
  return s * fmaf(z, 1.0f - s, 1.0f);
}

// z s(v), v = 2 sqrt(2 / pi) (z + 0.044715 z^3):  s + z s (1 - s) v'
__device__ __forceinline__ float gelu_tanh_gradient(float z) {
  constexpr float kTwoSqrt2OverPi = 2 * 0.7978845608f;
  const float square = z * z;
  const float s = gated(1.0f, -z * fmaf(square, kTwoSqrt2OverPi * 0.044715f, kTwoSqrt2OverPi));
  const float slope = fmaf(square, 3 * kTwoSqrt2OverPi * 0.044715f, kTwoSqrt2OverPi);
  return s * fmaf(z * slope, 1.0f - s, 1.0f);
}

// Phi(z) + z phi(z), with a shared exponential
__device__ __forceinline__ float gelu_erf_gradient(float z) {
  constexpr float kInverseSqrt2Pi = 0.39894228f;
  const NormalTail tail = normal_tail(z);
  return fmaf(z * kInverseSqrt2Pi, tail.exponential, z < 0.0f ? tail.mass : 1.0f - tail.mass);
}

// The same for results of 16 bits: 1/2 + sign(z) (1/2 - h(|z|)), where h(a) = Phi(-a) - a phi(a) = e^(-a^2 /
// 2) R(a). R is fitted up to 13, with weight e^(-a^2 / 2) or, in the tail, .003 / R. The error is 1.2e-4
// absolute, and 4 % of h between 2 and 13 (emulated on the host against mpmath). It takes one special
// function and 13 instructions instead of two and 20, with which issue slots were nearly the limit; now the
// pass waits for memory.
__device__ __forceinline__ float gelu_erf_gradient_half(float z) {
  const float a = fminf(fabsf(z), 13.0f);
  const float r = polynomial(a, -5.33008681e-06f, 2.07585737e-04f, -3.10670448e-03f, 2.29276089e-02f,
                             -9.24659766e-02f, 2.29229664e-01f, -7.93892526e-01f, 4.99875798e-01f);
  const float exponential = ptx::ex2_approx(z * (z * (-0.5f * kLog2E)));  // of z, so that a NaN stays one
  return 0.5f + copysignf(fmaf(-exponential, r, 0.5f), z);
}

/// dy <- dy act'(.), where `saved` is relu's output, or the pre-activation for the others. kHalf: for results
/// of 16 bits.
template <bool kHalf, int kCount>
__device__ __forceinline__ void activation_gradient(Activation activation, float (&dy)[kCount],
                                                    const float (&saved)[kCount]) {
  const auto each = [&](auto function) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) dy[i] = function(dy[i], saved[i]);
  };
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: each([](float d, float y) { return relu_gradient(d, y); }); break;
    case Activation::gelu_erf:
      each([](float d, float z) { return d * (kHalf ? gelu_erf_gradient_half(z) : gelu_erf_gradient(z)); });
      break;
    case Activation::gelu_tanh: each([](float d, float z) { return d * gelu_tanh_gradient(z); }); break;
    case Activation::silu: each([](float d, float z) { return d * silu_gradient(z); }); break;
    case Activation::relu2: each([](float d, float z) { return d * (2.0f * relu(z)); }); break;
  }
}

}  // namespace sparseloom::kernels::cuda::epilogue
