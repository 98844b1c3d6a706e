#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/vector.cuh"

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

/// Calls body(row, group) for every group; neighbouring threads get neighbouring groups.
template <class Element, class Body>
__device__ __forceinline__ void for_groups(const Params<Element>& params, Body body) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads, count = params.rows * params.groups;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    body(i / params.groups, i % params.groups);
}

/// The stored element of a column of a group, or zero.
template <class Element>
__device__ __forceinline__ Element member_of(unsigned bits, unsigned column, Element first, Element second) {
  return column == (bits & 3u) ? first : column == bits >> 2 ? second : Element{};
}

// Unpacking processes kRowsAtOnce rows x 32 lanes at a time, so that no thread divides.
constexpr unsigned kRowsAtOnce = kThreads / 32;
template <class Element, class Body>
__device__ __forceinline__ void for_rows(const Params<Element>& params, Body body) {
  const std::int64_t step = std::int64_t{gridDim.y} * kRowsAtOnce;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kRowsAtOnce + threadIdx.y; row < params.rows;
       row += step)
    body(row);
}

/// A thread has 16 bytes of values: it loads them and their positions by one load each, and stores 32 bytes.
template <class Element>
__global__ void __launch_bounds__(kThreads) unpack_vectors(const Params<Element> params) {
  using Values = Vector<Element>;
  constexpr int kGroups = Values::kCount / 2;
  const std::int64_t at = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (at * kGroups >= params.groups) return;
  for_rows(params, [&](std::int64_t row) {
    const Values values = reinterpret_cast<const Values*>(params.values + 2 * row * params.groups)[at];
    unsigned bits;
    if constexpr (kGroups == 1) {
      bits = params.positions[row * ((params.groups + 1) / 2) + at / 2] >> at % 2 * 4;
    } else {
      using Bits = std::conditional_t<kGroups == 2, std::uint8_t,
                                      std::conditional_t<kGroups == 4, std::uint16_t, std::uint32_t>>;
      bits = reinterpret_cast<const Bits*>(params.positions + row * (params.groups / 2))[at];
    }
    Element dense[4 * kGroups];
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i)
      dense[i] =
          member_of(bits >> i / 4 * 4 & 15u, i % 4, values.element[i / 4 * 2], values.element[i / 4 * 2 + 1]);
    auto* const to = reinterpret_cast<Values*>(params.dense + row * params.stride) + 2 * at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Values written;
#pragma unroll
      for (int i = 0; i < Values::kCount; ++i) written.element[i] = dense[half * Values::kCount + i];
      to[half] = written;
    }
  });
}

/// A thread has a group of every row, whatever the sizes, and stores kTogether of its columns at a time.
template <class Element, int kTogether>
__global__ void __launch_bounds__(kThreads) unpack_groups(const Params<Element> params) {
  struct alignas(kTogether * sizeof(Element)) Stored {
    Element element[kTogether];
  };
  const std::int64_t group = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (group >= params.groups) return;
  const auto columns = static_cast<int>(min(params.cols - 4 * group, std::int64_t{4}));
  for_rows(params, [&](std::int64_t row) {
    const Element* const pair = params.values + 2 * (row * params.groups + group);
    const Element first = pair[0], second = pair[1];
    const unsigned bits =
        params.positions[row * ((params.groups + 1) / 2) + group / 2] >> (group % 2 * 4) & 15u;
    auto* const to = reinterpret_cast<Stored*>(params.dense + row * params.stride + 4 * group);
#pragma unroll
    for (int i = 0; i < 4; i += kTogether) {
      if (i >= columns) break;
      Stored stored;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) stored.element[j] = member_of(bits, i + j, first, second);
      to[i / kTogether] = stored;
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
Params<Element> params_of(const Semi24View& w, const void* values, const void* dense, std::int64_t stride) {
  return {w.positions,
          static_cast<Element*>(const_cast<void*>(values)),
          static_cast<Element*>(const_cast<void*>(dense)),
          w.rows,
          w.cols,
          w.groups(),
          stride};
}

template <class Element>
int launch(void (*kernel)(Params<Element>), const Semi24View& w, const void* values, const void* dense,
           std::int64_t stride, void* stream) noexcept {
  const std::int64_t count = w.rows * w.groups();
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 65536));
  return launch_kernel({.grid = blocks, .block = kThreads, .stream = static_cast<cudaStream_t>(stream)},
                       kernel, params_of<Element>(w, values, dense, stride));
}

template <class Element>
int unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) noexcept {
  if (w.rows == 0 || w.cols == 0) return cudaSuccess;
  constexpr std::int64_t kGroups = Vector<Element>::kCount / 2, kSize = sizeof(Element);
  const auto address = reinterpret_cast<std::uintptr_t>(dense.data);
  // Whether so many columns are contiguous and aligned, and may be stored at once, in every row.
  const auto together = [&](std::int64_t columns) {
    return w.cols % columns == 0 && dense.stride % columns == 0 && address % (columns * kSize) == 0;
  };
  const bool vectors = w.cols % 4 == 0 && w.groups() % kGroups == 0 &&
                       vector_aligned(values, 2 * w.groups() * kSize) &&
                       vector_aligned(dense.data, dense.stride * kSize) &&
                       reinterpret_cast<std::uintptr_t>(w.positions) % sizeof(std::uint32_t) == 0;
  constexpr int kMost = kSize == 8 ? 2 : 4;  // columns in 16 bytes
  const auto kernel = vectors           ? unpack_vectors<Element>
                      : together(kMost) ? unpack_groups<Element, kMost>
                      : together(2)     ? unpack_groups<Element, 2>
                                        : unpack_groups<Element, 1>;
  const std::int64_t across = vectors ? w.groups() / kGroups : w.groups();
  const auto down = std::min<std::int64_t>((w.rows + kRowsAtOnce - 1) / kRowsAtOnce, 65535);
  return launch_kernel({.grid = dim3(static_cast<unsigned>((across + 31) / 32), static_cast<unsigned>(down)),
                        .block = dim3(32, kRowsAtOnce),
                        .stream = static_cast<cudaStream_t>(stream)},
                       kernel, params_of<Element>(w, values, dense.data, dense.stride));
}

}  // namespace

int semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense, void* stream) noexcept {
  switch (size_of(dense.dtype)) {
    case 1: return unpack<std::uint8_t>(w, values, dense, stream);
    case 2: return unpack<std::uint16_t>(w, values, dense, stream);
    case 4: return unpack<std::uint32_t>(w, values, dense, stream);
    default: return unpack<std::uint64_t>(w, values, dense, stream);
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
