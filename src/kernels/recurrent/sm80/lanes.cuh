// Shared by the cells' kernels: loads of a few units of a row, the functions of the gates, and the launch.
//
//   grid.x: units of a row, kUnits per thread    grid.y: rows (sequences), strided
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/shared/activation/row.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/vector.cuh"
#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda::recurrent {

constexpr int kThreads = 128;

__device__ __forceinline__ float sigmoid(float x) { return epilogue::gated(1.0f, -x); }
// tanh.approx keeps 11 bits, and 2 sigmoid(2 x) - 1 none near zero; c is a sum over all steps.
__device__ __forceinline__ float tangent(float x) { return tanhf(x); }

#define SPARSELOOM_CELL __device__ __forceinline__
#include "kernels/recurrent/cell-inl.h"
#undef SPARSELOOM_CELL

/// kUnits units of a row at once: 4, if all rows are whole vectors, or 1.
template <class Element, int kUnits>
struct Units {
  using Bits = typename Element::Bits;
  static constexpr int kBytes = kUnits * static_cast<int>(sizeof(Bits));
  float x[kUnits];

  __device__ __forceinline__ void load(const void* matrix, std::int64_t at) {
    const Bits* const source = static_cast<const Bits*>(matrix) + at;
    if constexpr (kUnits == 1) {
      x[0] = Element::to_f32(*source);
    } else {
      const auto vector = *reinterpret_cast<const Vector<Bits, kBytes>*>(source);
#pragma unroll
      for (int e = 0; e < kUnits; ++e) x[e] = Element::to_f32(vector.element[e]);
    }
  }
  __device__ __forceinline__ void store(void* matrix, std::int64_t at) const {
    Bits* const target = static_cast<Bits*>(matrix) + at;
    if constexpr (kUnits == 1) {
      *target = Element::from_f32(x[0]);
    } else {
      Vector<Bits, kBytes> vector;
#pragma unroll
      for (int e = 0; e < kUnits; ++e) vector.element[e] = Element::from_f32(x[e]);
      *reinterpret_cast<Vector<Bits, kBytes>*>(target) = vector;
    }
  }
  /// Adds the units of a matrix that may be null.
  __device__ __forceinline__ void add(const void* matrix, std::int64_t at) {
    if (matrix == nullptr) return;
    Units more;
    more.load(matrix, at);
#pragma unroll
    for (int e = 0; e < kUnits; ++e) x[e] += more.x[e];
  }
};

/// Calls body(row, unit) for the units of this thread.
template <int kUnits, class Body>
__device__ __forceinline__ void each(std::int64_t n, std::int64_t hidden, Body body) {
  const std::int64_t unit = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kUnits;
  if (unit >= hidden) return;
  for (std::int64_t row = blockIdx.y; row < n; row += gridDim.y) body(row, unit);
}

template <class Cell>
struct Kernels {
  void (*one)(Cell), (*four)(Cell);
};

/// Launches `four` if every row of every matrix is a whole number of vectors of four units.
template <class Cell>
int launch(const Cell& cell, const Kernels<Cell>& kernels, std::initializer_list<const void*> matrices,
           void* stream) noexcept {
  const bool four = cell.hidden % 4 == 0 && std::all_of(matrices.begin(), matrices.end(), [](const void* p) {
                      return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
                    });
  const std::int64_t per_block = std::int64_t{kThreads} * (four ? 4 : 1);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((cell.hidden + per_block - 1) / per_block),
                                       static_cast<unsigned>(std::min<std::int64_t>(cell.n, 65535))),
                          .block = kThreads,
                          .stream = static_cast<cudaStream_t>(stream)};
  return launch_kernel(shape, four ? kernels.four : kernels.one, cell);
}

/// `kernel` for the cell's dtype.
#define SPARSELOOM_CELL_KERNELS(kernel, Cell)                                          \
  cell.dtype == DType::f32   ? Kernels<Cell>{kernel<row::F32, 1>, kernel<row::F32, 4>} \
  : cell.dtype == DType::f16 ? Kernels<Cell>{kernel<row::F16, 1>, kernel<row::F16, 4>} \
                             : Kernels<Cell> {                                         \
    kernel<row::Bf16, 1>, kernel<row::Bf16, 4>                                         \
  }

}  // namespace sparseloom::kernels::cuda::recurrent
