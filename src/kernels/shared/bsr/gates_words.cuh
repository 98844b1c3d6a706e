// The access of gates' kernels to the values: f32, f16 or bf16, one by one or in vectors of 16 bytes, as fp32
// in between.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::gating {

__device__ __forceinline__ float as_f32(float x) { return x; }
__device__ __forceinline__ float as_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float as_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void round_to(float& to, float x) { to = x; }
__device__ __forceinline__ void round_to(__half& to, float x) { to = __float2half_rn(x); }
__device__ __forceinline__ void round_to(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

/// One element, or a vector of 16 bytes, that is multiplied in fp32 and rounded once.
template <class T, bool kVectors>
struct Words {
  static constexpr int kCount = kVectors ? 16 / static_cast<int>(sizeof(T)) : 1;
  struct alignas(kVectors ? 16 : sizeof(T)) Word {
    T element[kCount];
  };

  __device__ static Word load(const T* from) {
    Word word;
    if constexpr (kVectors)
      *reinterpret_cast<uint4*>(&word) = __ldg(reinterpret_cast<const uint4*>(from));
    else
      word.element[0] = *from;
    return word;
  }
  __device__ static Word times(float factor, const Word& word) {
    Word product;
#pragma unroll
    for (int e = 0; e < kCount; ++e) round_to(product.element[e], factor * as_f32(word.element[e]));
    return product;
  }
  __device__ static void store(T* to, const Word& word) { *reinterpret_cast<Word*>(to) = word; }
};

/// Whether all of them may be read and written in vectors of 16 bytes.
template <class... Pointer>
bool aligned(const Pointer*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) | ...) % 16) == 0;
}

/// Runs body(T{}) for the type of the values.
template <class Body>
cudaError_t with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f16: return body(__half{});
    case DType::bf16: return body(__nv_bfloat16{});
    default: return body(float{});
  }
}

}  // namespace sparseloom::kernels::cuda::gating
