// The gradients of gates and of the values that they multiply: a thread block (of large blocks) or a warp (of
// small ones) takes one block.
#include <cstdint>

#include "core/check.h"
#include "kernels/shared/bsr/gates.h"
#include "kernels/shared/bsr/gates_words.cuh"

namespace sparseloom::kernels::cuda {
namespace gating {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kWarp = 0xffffffffu;
constexpr int kLarge = 2048;  // least elements of a block that gets a thread block

/// kGroup: threads per block of the weight, kThreads or a warp.
template <class T, bool kVectors, int kGroup>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const __grid_constant__ GateGradients call, int words) {
  using W = Words<T, kVectors>;
  __shared__ float sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t i =
      kGroup == kThreads ? std::int64_t{blockIdx.x} : std::int64_t{blockIdx.x} * kWarps + warp;
  if (i >= call.blocks) return;  // a whole group
  const int member = static_cast<int>(threadIdx.x) % kGroup;
  const std::int32_t place = __ldg(call.place + i);
  const float gate = __ldg(call.gates + i);
  const std::int64_t size = std::int64_t{words} * W::kCount;
  const T* gradient = static_cast<const T*>(call.gradient) + (place < 0 ? 0 : place) * size;
  const T* values = static_cast<const T*>(call.values) + i * size;
  T* const dvalues = call.dvalues == nullptr ? nullptr : static_cast<T*>(call.dvalues) + i * size;
  float sum = 0;
#pragma unroll 2
  for (int w = member; w < words; w += kGroup) {
    typename W::Word g = {};
    if (place >= 0) {
      g = W::load(gradient + w * W::kCount);
      if (call.dgates != nullptr) {
        const typename W::Word v = W::load(values + w * W::kCount);
#pragma unroll
        for (int e = 0; e < W::kCount; ++e) sum = fmaf(as_f32(g.element[e]), as_f32(v.element[e]), sum);
      }
      g = W::times(gate, g);
    }
    if (dvalues != nullptr) W::store(dvalues + w * W::kCount, g);
  }
  if (call.dgates == nullptr) return;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWarp, sum, distance);
  if constexpr (kGroup == kThreads) {
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w];
  }
  if (member == 0) call.dgates[i] = place < 0 ? 0 : sum;
}

template <class T, bool kVectors>
cudaError_t launch_gradients(const GateGradients& call, cudaStream_t stream) {
  const int elements = call.block.rows * call.block.cols, words = elements / Words<T, kVectors>::kCount;
  if (elements >= kLarge)
    gradients_kernel<T, kVectors, kThreads>
        <<<static_cast<unsigned>(call.blocks), kThreads, 0, stream>>>(call, words);
  else
    gradients_kernel<T, kVectors, 32>
        <<<static_cast<unsigned>(core::ceil_div(call.blocks, kWarps)), kThreads, 0, stream>>>(call, words);
  return cudaGetLastError();
}

}  // namespace
}  // namespace gating

int sm80_gate_gradients(const GateGradients& call, void* stream) noexcept {
  if (call.blocks == 0 || (call.dvalues == nullptr && call.dgates == nullptr)) return cudaSuccess;
  using namespace gating;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool vectors = aligned(static_cast<const char*>(call.values), static_cast<const char*>(call.gradient),
                               static_cast<const char*>(call.dvalues));
  return with_type(call.dtype, [&]<class T>(T) {
    return vectors ? launch_gradients<T, true>(call, cuda_stream)
                   : launch_gradients<T, false>(call, cuda_stream);
  });
}

}  // namespace sparseloom::kernels::cuda
