// Elements as bits: their keys, which are ordered like magnitudes, as on the CPU
// (sparsifiers/chunk_reader.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::sparsify {

struct F32 {
  using Word = std::uint32_t;
  using Key = std::uint32_t;
  static constexpr Key kInfinity = 0x7f800000u;
  static __device__ __forceinline__ double value(Key key) { return __uint_as_float(key); }
};
struct F16 {
  using Word = std::uint16_t;
  using Key = std::uint32_t;
  static constexpr Key kInfinity = 0x7c00u;
  /// Moving the exponent by multiplication makes denormals normal, too.
  static __device__ __forceinline__ double value(Key key) {
    return __uint_as_float(key == kInfinity ? 0x7f800000u : key << 13) * (key == kInfinity ? 1.0f : 0x1p112f);
  }
};
struct Bf16 {
  using Word = std::uint16_t;
  using Key = std::uint32_t;
  static constexpr Key kInfinity = 0x7f80u;
  static __device__ __forceinline__ double value(Key key) { return __uint_as_float(key << 16); }
};
struct F64 {
  using Word = unsigned long long;
  using Key = unsigned long long;
  static constexpr Key kInfinity = 0x7ffull << 52;
  static __device__ __forceinline__ double value(Key key) {
    return __longlong_as_double(static_cast<long long>(key));
  }
};

/// Bits of a key that may be set.
template <class E>
inline constexpr int kKeyBits = 8 * static_cast<int>(sizeof(typename E::Word)) - 1;

/// The magnitude, with Inf instead of NaN.
template <class E>
__device__ __forceinline__ typename E::Key key_of(typename E::Word word) {
  constexpr typename E::Key kMagnitude = (typename E::Key{1} << kKeyBits<E>)-1;
  const typename E::Key magnitude = word & kMagnitude;
  return magnitude < E::kInfinity ? magnitude : E::kInfinity;
}

/// Returns run(F32{}), run(F16{}), ..., by the dtype.
template <class Run>
cudaError_t for_dtype(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32: return run(F32{});
    case DType::f16: return run(F16{});
    case DType::bf16: return run(Bf16{});
    case DType::f64: return run(F64{});
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

/// a / b of nonnegative numbers; most fit 32 bits, whose division is several times faster.
__device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

inline constexpr unsigned kWarp = 0xffffffffu;

/// The sum over the lanes up to this one.
template <class Int>
__device__ __forceinline__ Int sum_through(Int own) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Int lower = __shfl_up_sync(kWarp, own, distance);
    if (lane >= distance) own += lower;
  }
  return own;
}

/// The sum over all lanes.
template <class Int>
__device__ __forceinline__ Int warp_sum(Int own) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) own += __shfl_xor_sync(kWarp, own, distance);
  return own;
}

}  // namespace sparseloom::kernels::cuda::sparsify
