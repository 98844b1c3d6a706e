#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/csr_linear/sm80/entries.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Element>
struct Params {
  const std::int32_t *crow, *col;
  Element *values, *dense;
  std::int64_t rows, cols, stride;
};

enum class Copy { unpack, gather, add };

/// One thread block per row.
template <class Element, Copy kCopy>
__global__ void __launch_bounds__(kThreads) copy_kernel(const Params<Element> p) {
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Element* const dense = p.dense + row * p.stride;
    if (kCopy == Copy::unpack) {
      for (std::int64_t i = threadIdx.x; i < p.cols; i += kThreads) dense[i] = Element{};
      __syncthreads();
    }
    const std::int32_t end = p.crow[row + 1];
    for (std::int32_t at = p.crow[row] + static_cast<std::int32_t>(threadIdx.x); at < end; at += kThreads) {
      const std::int32_t column = p.col[at];
      if (kCopy == Copy::unpack)
        dense[column] = p.values[at];
      else
        p.values[at] = kCopy == Copy::add ? p.values[at] + dense[column] : dense[column];
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    by_column_kernel(const Element* values, const std::int32_t* slot, std::int64_t stored, Element* to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < stored) to[at] = values[slot[at]];
}

template <class Element>
int launch_by_column(const CsrView& w, const void* values, void* to, void* stream) noexcept {
  if (w.stored == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((w.stored + kThreads - 1) / kThreads);
  by_column_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const Element*>(values), w.slot, w.stored, static_cast<Element*>(to));
  return cudaGetLastError();
}

template <class Element, Copy kCopy>
int launch(const CsrView& w, const void* values, const void* dense, std::int64_t stride,
           void* stream) noexcept {
  if (w.rows == 0) return cudaSuccess;
  const Params<Element> p{w.crow,
                          w.col,
                          static_cast<Element*>(const_cast<void*>(values)),
                          static_cast<Element*>(const_cast<void*>(dense)),
                          w.rows,
                          w.cols,
                          stride};
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(w.rows, 65536));
  copy_kernel<Element, kCopy><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

template <Copy kCopy>
int launch_sized(DType dtype, const CsrView& w, const void* values, const void* dense, std::int64_t stride,
                 void* stream) noexcept {
  switch (size_of(dtype)) {
    case 1: return launch<std::uint8_t, kCopy>(w, values, dense, stride, stream);
    case 2: return launch<std::uint16_t, kCopy>(w, values, dense, stride, stream);
    case 4: return launch<std::uint32_t, kCopy>(w, values, dense, stride, stream);
    default: return launch<std::uint64_t, kCopy>(w, values, dense, stride, stream);
  }
}

}  // namespace

int csr_unpack(const CsrView& w, const void* values, const MatrixView& dense, void* stream) noexcept {
  return launch_sized<Copy::unpack>(dense.dtype, w, values, dense.data, dense.stride, stream);
}

int csr_gather(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept {
  return launch_sized<Copy::gather>(dense.dtype, w, values, dense.data, dense.stride, stream);
}

int csr_gather_add(const ConstMatrixView& dense, const CsrView& w, void* values, void* stream) noexcept {
  return launch<float, Copy::add>(w, values, dense.data, dense.stride, stream);
}

int csr_by_column(DType dtype, const CsrView& w, const void* values, void* by_column, void* stream) noexcept {
  return size_of(dtype) == 2 ? launch_by_column<std::uint16_t>(w, values, by_column, stream)
                             : launch_by_column<std::uint32_t>(w, values, by_column, stream);
}

}  // namespace sparseloom::kernels::cuda
