// out[e] = partial[0][e] + partial[1][e] + ... + partial[pieces - 1][e]: the second kernel of a dW whose
// tokens were cut into segments.
//
//   grid.x * threads: four elements per thread, of every segment
//
// The segments are added in order, so that every run gives the same bits, in fp32 with one rounding. If the
// sum is added to out, out's old value comes last.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/instances.h"

namespace sparseloom::kernels::cuda {
namespace {

struct Config {
  static constexpr int kThreads = 256;
  static constexpr int kEach = 4;  // elements: a 16-byte load per segment; blocks have multiples of 64
};

template <class Element>
__device__ __forceinline__ Element rounded(float value) {
  return static_cast<Element>(value);  // to nearest even
}

template <class Element>
__global__ void __launch_bounds__(Config::kThreads)
    sum_pieces_kernel(const float* __restrict__ partial, std::int64_t elements, int pieces, bool accumulate,
                      Element* __restrict__ out) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * Config::kThreads + threadIdx.x) * Config::kEach;
  if (first >= elements) return;
  float4 sum = *reinterpret_cast<const float4*>(partial + first);
#pragma unroll 4
  for (int piece = 1; piece < pieces; ++piece) {
    const float4 next = *reinterpret_cast<const float4*>(partial + piece * elements + first);
    sum.x += next.x;
    sum.y += next.y;
    sum.z += next.z;
    sum.w += next.w;
  }
  // Element by element: the alignment of out is not guaranteed, and L2 merges the stores of a warp.
  if (accumulate) {
    sum.x += static_cast<float>(out[first]);
    sum.y += static_cast<float>(out[first + 1]);
    sum.z += static_cast<float>(out[first + 2]);
    sum.w += static_cast<float>(out[first + 3]);
  }
  out[first] = rounded<Element>(sum.x);
  out[first + 1] = rounded<Element>(sum.y);
  out[first + 2] = rounded<Element>(sum.z);
  out[first + 3] = rounded<Element>(sum.w);
}

template <class Element>
cudaError_t launch(const float* partial, std::int64_t elements, int pieces, bool accumulate, void* out,
                   cudaStream_t stream) noexcept {
  constexpr std::int64_t kPerBlock = Config::kThreads * Config::kEach;
  const auto grid = static_cast<unsigned>((elements + kPerBlock - 1) / kPerBlock);
  sum_pieces_kernel<<<grid, Config::kThreads, 0, stream>>>(partial, elements, pieces, accumulate,
                                                           static_cast<Element*>(out));
  return cudaGetLastError();
}

}  // namespace

cudaError_t sum_pieces(const float* partial, std::int64_t elements, int pieces, DType dtype, bool accumulate,
                       void* out, cudaStream_t stream) noexcept {
  switch (accumulate ? DType::f32 : dtype) {
    case DType::bf16: return launch<__nv_bfloat16>(partial, elements, pieces, false, out, stream);
    case DType::f16: return launch<__half>(partial, elements, pieces, false, out, stream);
    case DType::f32: return launch<float>(partial, elements, pieces, accumulate, out, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
