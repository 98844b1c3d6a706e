// Loads, stores and activates one element at a time in any dtype, for the reference kernel and for passes
// outside a fast kernel.
#pragma once

#include <cmath>
#include <cstdint>

#include "sparseloom/activation.h"
#include "sparseloom/dtype.h"
#include "sparseloom/generic/float8.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::kernels {

inline double load(DType type, const void* data, std::int64_t i) noexcept {
  switch (type) {
    case DType::f64: return static_cast<const double*>(data)[i];
    case DType::f32: return static_cast<const float*>(data)[i];
    case DType::f16: return core::to_f32(static_cast<const core::F16*>(data)[i]);
    case DType::bf16: return core::to_f32(static_cast<const core::Bf16*>(data)[i]);
    case DType::i8: return static_cast<const std::int8_t*>(data)[i];
    case DType::f8e4m3: return core::to_f32(static_cast<const core::F8E4M3*>(data)[i]);
  }
  return 0;
}

/// Rounds once, to nearest even. Does nothing for 8-bit dtypes, which no product writes.
inline void store(DType type, void* data, std::int64_t i, double value) noexcept {
  switch (type) {
    case DType::f64: static_cast<double*>(data)[i] = value; break;
    case DType::f32: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case DType::f16: static_cast<core::F16*>(data)[i] = core::to_f16(value); break;
    case DType::bf16: static_cast<core::Bf16*>(data)[i] = core::to_bf16(value); break;
    case DType::i8:
    case DType::f8e4m3: break;
  }
}

inline double activate(Activation activation, double x) noexcept {
  constexpr double kSqrtHalf = 0.70710678118654752440, kSqrt2OverPi = 0.79788456080286535588;
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;  // not max(x, 0), which would lose a NaN
    case Activation::gelu_erf: return 0.5 * x * (1 + std::erf(x * kSqrtHalf));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu2: return x < 0 ? 0 : x * x;
  }
  return x;
}

/// The derivative of activate at x. As in torch, relu's is 0 at 0.
inline double slope(Activation activation, double x) noexcept {
  constexpr double kSqrtHalf = 0.70710678118654752440, kSqrt2OverPi = 0.79788456080286535588;
  switch (activation) {
    case Activation::none: return 1;
    case Activation::relu: return x <= 0 ? 0 : 1;
    case Activation::gelu_erf:
      return 0.5 * (1 + std::erf(x * kSqrtHalf)) + 0.5 * kSqrt2OverPi * x * std::exp(-x * x / 2);
    case Activation::gelu_tanh: {
      const double t = std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::relu2: return x < 0 ? 0 : 2 * x;
  }
  return 1;
}

}  // namespace sparseloom::kernels
