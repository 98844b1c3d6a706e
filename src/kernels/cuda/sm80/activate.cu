// y <- activation(z) + residual, in place or not, in fp32 and rounded once: what a product's own epilogue cannot do.
//
//   grid.x: 16-byte vectors of a row    grid.y: rows, in strides; a matrix without gaps between its rows counts as one row
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/epilogue/activation.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace sparseloom::kernels::cuda {
namespace {

struct Config {
  static constexpr int kThreads = 256;
};

template <class Element>
struct Params {
  const Element* z;
  const Element* residual;  // or null
  Element* y;               // may be z
  std::int64_t rows, cols, z_stride, residual_stride, y_stride;
  Activation activation;
  bool aligned;  // 16 bytes, every row
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class Element>
__global__ void __launch_bounds__(Config::kThreads) activate_kernel(const __grid_constant__ Params<Element> params) {
  constexpr int kVector = Vector<Element>::kCount;
  const std::int64_t col = (std::int64_t{blockIdx.x} * Config::kThreads + threadIdx.x) * kVector;
  if (col >= params.cols) return;
  const bool whole = params.aligned && col + kVector <= params.cols;
  for (std::int64_t row = blockIdx.y; row < params.rows; row += gridDim.y) {
    const Element* z = params.z + row * params.z_stride + col;
    Element* y = params.y + row * params.y_stride + col;
    float x[kVector] = {};
    Vector<Element> vector;
    if (whole) vector = *reinterpret_cast<const Vector<Element>*>(z);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (!whole && col + e < params.cols) vector.element[e] = z[e];
      if (whole || col + e < params.cols) x[e] = to_float(vector.element[e]);
    }
    epilogue::activate(params.activation, x);
    if (params.residual != nullptr) {
      const Element* residual = params.residual + row * params.residual_stride + col;
      if (whole) vector = *reinterpret_cast<const Vector<Element>*>(residual);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (!whole && col + e < params.cols) vector.element[e] = residual[e];
        if (whole || col + e < params.cols) x[e] += to_float(vector.element[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      vector.element[e] = static_cast<Element>(x[e]);
      if (!whole && col + e < params.cols) y[e] = vector.element[e];
    }
    if (whole) *reinterpret_cast<Vector<Element>*>(y) = vector;
  }
}

template <class Element>
cudaError_t launch(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual, const MatrixView& y,
                   cudaStream_t stream) {
  Params<Element> params{static_cast<const Element*>(z.data),
                         static_cast<const Element*>(residual.data),
                         static_cast<Element*>(y.data),
                         y.rows,
                         y.cols,
                         z.stride,
                         residual.stride,
                         y.stride,
                         activation,
                         false};
  const bool added = residual.data != nullptr;
  if ((y.stride == y.cols && z.stride == y.cols && (!added || residual.stride == y.cols)) || y.rows == 1) {
    params.cols = y.rows * y.cols;
    params.rows = 1;
  }
  constexpr std::int64_t kSize = sizeof(Element);
  const auto whole_vectors = [&](const void* data, std::int64_t stride) {
    return vector_aligned(data, params.rows == 1 ? 0 : stride * kSize);
  };
  params.aligned = whole_vectors(y.data, y.stride) && whole_vectors(z.data, z.stride) &&
                   (!added || whole_vectors(residual.data, residual.stride));
  constexpr std::int64_t kPerThreadBlock = Config::kThreads * Vector<Element>::kCount;
  const dim3 grid(static_cast<unsigned>((params.cols + kPerThreadBlock - 1) / kPerThreadBlock),
                  static_cast<unsigned>(std::min<std::int64_t>(params.rows, 65535)));
  activate_kernel<<<grid, Config::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual, const MatrixView& y,
                  void* stream) noexcept {
  if (y.rows == 0 || y.cols == 0) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (y.dtype) {
    case DType::f32: return launch<float>(z, activation, residual, y, cuda_stream);
    case DType::f16: return launch<__half>(z, activation, residual, y, cuda_stream);
    case DType::bf16: return launch<__nv_bfloat16>(z, activation, residual, y, cuda_stream);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
