// Conversion of 16-byte vectors of a matrix's row to floats and back, for passes over whole matrices.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/convert.cuh"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda::row {

struct F32 {
  using Bits = std::uint32_t;
  static __device__ __forceinline__ float to_f32(Bits bits) { return __uint_as_float(bits); }
  static __device__ __forceinline__ Bits from_f32(float x) { return __float_as_uint(x); }
};
struct F16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float to_f32(Bits bits) { return ptx::cvt_f32_f16(bits); }
  static __device__ __forceinline__ Bits from_f32(float x) {
    return static_cast<Bits>(ptx::cvt_rn_f16x2(x, x));
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
};
struct Bf16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float to_f32(Bits bits) { return ptx::cvt_f32_bf16(bits); }
  static __device__ __forceinline__ Bits from_f32(float x) {
    return static_cast<Bits>(ptx::cvt_rn_bf16x2(x, x));
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
};

/// 16 bytes of elements, held in registers. kWhole: every row of every matrix consists of whole vectors;
/// otherwise all elements are loaded and stored one by one.
template <class Element, bool kWhole>
struct Row {
  using Bits = typename Element::Bits;
  static constexpr int kCount = 16 / sizeof(Bits);

  static __device__ __forceinline__ uint4 load(const void* matrix, std::int64_t at, std::int64_t columns) {
    const auto* source = static_cast<const Bits*>(matrix) + at;
    if constexpr (kWhole) {
      return __ldcs(reinterpret_cast<const uint4*>(source));  // read once: L2 should keep the results instead
    } else {
      Vector<Bits> vector{};
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        if (e < columns) vector.element[e] = source[e];
      return *reinterpret_cast<const uint4*>(&vector);
    }
  }
  static __device__ __forceinline__ void unpack(const uint4& vector, float (&x)[kCount]) {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if constexpr (sizeof(Bits) == 4)
        x[e] = Element::to_f32(words[e]);
      else
        x[e] = Element::to_f32(static_cast<Bits>(words[e / 2] >> (e % 2 * 16)));
    }
  }
  static __device__ __forceinline__ void store(void* matrix, std::int64_t at, std::int64_t columns,
                                               const float (&x)[kCount]) {
    auto* target = static_cast<Bits*>(matrix) + at;
    if constexpr (kWhole) {
      uint4 vector;
      if constexpr (sizeof(Bits) == 4)
        vector = make_uint4(Element::from_f32(x[0]), Element::from_f32(x[1]), Element::from_f32(x[2]),
                            Element::from_f32(x[3]));
      else
        vector = make_uint4(Element::pair(x[0], x[1]), Element::pair(x[2], x[3]), Element::pair(x[4], x[5]),
                            Element::pair(x[6], x[7]));
      __stcg(reinterpret_cast<uint4*>(target), vector);  // the compiler split a plain store in four
    } else {
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        if (e < columns) target[e] = Element::from_f32(x[e]);
    }
  }
};

}  // namespace sparseloom::kernels::cuda::row
