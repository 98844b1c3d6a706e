// y <- activation(z) + residual, in place or not, computed in fp32 and rounded once. It serves products whose
// own epilogue does not support this.
//
//   grid.x: 16-byte vectors of a row, two per thread    grid.y: rows, strided
//   If no matrix has gaps between its rows, all rows count as one.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/shared/activation/activation.h"
#include "kernels/shared/activation/row.cuh"
#include "kernels/shared/epilogue/activation.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using row::Row;

struct Config {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 2;  // vectors in flight per thread
};

struct Params {
  const void* z;
  const void* residual;  // or null
  void* y;               // may be z
  std::int64_t rows, cols, z_stride, residual_stride, y_stride;
  Activation activation;
};

/// One vector of a row. kWhole: all of its elements are inside the matrix.
template <class Element, bool kWhole>
struct Step {
  using Lane = Row<Element, kWhole>;
  uint4 z, residual;

  __device__ __forceinline__ void load(const Params& params, std::int64_t row, std::int64_t col) {
    z = Lane::load(params.z, row * params.z_stride + col, params.cols - col);
    if (params.residual != nullptr)
      residual = Lane::load(params.residual, row * params.residual_stride + col, params.cols - col);
  }
  __device__ __forceinline__ void finish(const Params& params, std::int64_t row, std::int64_t col) const {
    float y[Lane::kCount];
    Lane::unpack(z, y);
    epilogue::activate(params.activation, y);
    if (params.residual != nullptr) {
      float more[Lane::kCount];
      Lane::unpack(residual, more);
#pragma unroll
      for (int e = 0; e < Lane::kCount; ++e) y[e] += more[e];
    }
    Lane::store(params.y, row * params.y_stride + col, params.cols - col, y);
  }
};

/// kAligned: every row begins at a multiple of 16 bytes.
template <class Element, bool kAligned>
__global__ void __launch_bounds__(Config::kThreads) activate_kernel(const __grid_constant__ Params params) {
  constexpr int kVector = Row<Element, kAligned>::kCount, kStep = Config::kThreads * kVector;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kStep * Config::kUnroll) + threadIdx.x * kVector;
  const bool whole = kAligned && first + (Config::kUnroll - 1) * kStep + kVector <= params.cols;
  for (std::int64_t row = blockIdx.y; row < params.rows; row += gridDim.y) {
    if (whole) {
      Step<Element, kAligned> steps[Config::kUnroll];
#pragma unroll
      for (int u = 0; u < Config::kUnroll; ++u) steps[u].load(params, row, first + u * kStep);
#pragma unroll
      for (int u = 0; u < Config::kUnroll; ++u) steps[u].finish(params, row, first + u * kStep);
    } else {
      for (std::int64_t col = first; col < params.cols && col < first + Config::kUnroll * kStep;
           col += kStep) {
        Step<Element, false> step;
        step.load(params, row, col);
        step.finish(params, row, col);
      }
    }
  }
}

template <class Element>
cudaError_t launch(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                   const MatrixView& y, cudaStream_t stream) {
  Params params{z.data,   residual.data,   y.data,   y.rows,    y.cols,
                z.stride, residual.stride, y.stride, activation};
  const bool added = residual.data != nullptr;
  // Treat rows without gaps between them as one long row.
  if ((y.stride == y.cols && z.stride == y.cols && (!added || residual.stride == y.cols)) || y.rows == 1) {
    params.cols = y.rows * y.cols;
    params.rows = 1;
  }
  constexpr std::int64_t kSize = sizeof(typename Element::Bits);
  const auto aligned = [&](const void* data, std::int64_t stride) {
    return vector_aligned(data, params.rows == 1 ? 0 : stride * kSize);
  };
  const bool all = aligned(y.data, y.stride) && aligned(z.data, z.stride) &&
                   (!added || aligned(residual.data, residual.stride));
  constexpr std::int64_t kPerThreadBlock =
      std::int64_t{Config::kThreads} * Config::kUnroll * Row<Element, true>::kCount;
  const dim3 grid(static_cast<unsigned>((params.cols + kPerThreadBlock - 1) / kPerThreadBlock),
                  static_cast<unsigned>(std::min<std::int64_t>(params.rows, 65535)));
  const auto kernel = all ? activate_kernel<Element, true> : activate_kernel<Element, false>;
  kernel<<<grid, Config::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                  const MatrixView& y, void* stream) noexcept {
  if (y.rows == 0 || y.cols == 0) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (y.dtype) {
    case DType::f32: return launch<row::F32>(z, activation, residual, y, cuda_stream);
    case DType::f16: return launch<row::F16>(z, activation, residual, y, cuda_stream);
    case DType::bf16: return launch<row::Bf16>(z, activation, residual, y, cuda_stream);
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
