#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/semi24_linear/sm80/copies/copies.h"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Element>
struct Params {
  const std::uint8_t* positions;
  Element *values, *dense;
  std::int64_t rows, cols, groups, stride;
};

/// The two columns of a row that a group stores.
struct Columns {
  std::int64_t first, second;
};
template <class Element>
__device__ __forceinline__ Columns columns_of(const Params<Element>& params, std::int64_t row,
                                              std::int64_t group) {
  const unsigned bits =
      params.positions[row * ((params.groups + 1) / 2) + group / 2] >> (group % 2 * 4) & 15u;
  return {4 * group + (bits & 3u), 4 * group + (bits >> 2)};
}

/// Calls body(row, group) for every group; neighbouring threads have neighbouring groups.
template <class Element, class Body>
__device__ __forceinline__ void for_groups(const Params<Element>& params, Body body) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads, count = params.rows * params.groups;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    body(i / params.groups, i % params.groups);
}

template <class Element>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const Params<Element> params) {
  for_groups(params, [&](std::int64_t row, std::int64_t group) {
    const Element* const pair = params.values + 2 * (row * params.groups + group);
    const Element first = pair[0], second = pair[1];
    const Columns at = columns_of(params, row, group);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t column = 4 * group + i;
      if (column >= params.cols) break;
      params.dense[row * params.stride + column] = column == at.first    ? first
                                                   : column == at.second ? second
                                                                         : Element{};
    }
  });
}

template <class Element, bool kAdd>
__global__ void __launch_bounds__(kThreads) gather_kernel(const Params<Element> params) {
  for_groups(params, [&](std::int64_t row, std::int64_t group) {
    Element* const pair = params.values + 2 * (row * params.groups + group);
    const Columns at = columns_of(params, row, group);
    const Element* const dense = params.dense + row * params.stride;
    const Element first = at.first < params.cols ? dense[at.first] : Element{};
    const Element second = at.second < params.cols ? dense[at.second] : Element{};
    pair[0] = kAdd ? pair[0] + first : first;
    pair[1] = kAdd ? pair[1] + second : second;
  });
}

template <class Element>
int launch(void (*kernel)(Params<Element>), const Semi24View& w, const void* values, const void* dense,
           std::int64_t stride, void* stream) noexcept {
  const Params<Element> params{w.positions,
                               static_cast<Element*>(const_cast<void*>(values)),
                               static_cast<Element*>(const_cast<void*>(dense)),
                               w.rows,
                               w.cols,
                               w.groups(),
                               stride};
  const std::int64_t count = params.rows * params.groups;
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 65536));
  return launch_kernel({.grid = blocks, .block = kThreads, .stream = static_cast<cudaStream_t>(stream)},
                       kernel, params);
}

}  // namespace

int semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) noexcept {
  switch (size_of(dense.dtype)) {
    case 1: return launch(unpack_kernel<std::uint8_t>, w, values, dense.data, dense.stride, stream);
    case 2: return launch(unpack_kernel<std::uint16_t>, w, values, dense.data, dense.stride, stream);
    case 4: return launch(unpack_kernel<std::uint32_t>, w, values, dense.data, dense.stride, stream);
    default: return launch(unpack_kernel<std::uint64_t>, w, values, dense.data, dense.stride, stream);
  }
}

int semi24_gather(const ConstMatrixView& dense, const Semi24View& w, void* values, void* stream) noexcept {
  switch (size_of(dense.dtype)) {
    case 1: return launch(gather_kernel<std::uint8_t, false>, w, values, dense.data, dense.stride, stream);
    case 2: return launch(gather_kernel<std::uint16_t, false>, w, values, dense.data, dense.stride, stream);
    case 4: return launch(gather_kernel<std::uint32_t, false>, w, values, dense.data, dense.stride, stream);
    default: return launch(gather_kernel<std::uint64_t, false>, w, values, dense.data, dense.stride, stream);
  }
}

int semi24_gather_add(const ConstMatrixView& dense, const Semi24View& w, void* values,
                      void* stream) noexcept {
  return launch(gather_kernel<float, true>, w, values, dense.data, dense.stride, stream);
}

}  // namespace sparseloom::kernels::cuda
