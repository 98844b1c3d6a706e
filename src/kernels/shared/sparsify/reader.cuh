// Reader: the only access of the kernels to the elements of a matrix, so that its counts are the elements
// read. The matrix is the sequence of its rows; a thread reads it in units, which are vectors of 16 bytes if
// those are whole, and single elements elsewhere.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/shared/sparsify/element.cuh"
#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::kernels::cuda::sparsify {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
/// Units in flight per thread: 32 bytes of vectors. With 64, the kernels of take.cuh spilled registers.
template <bool kVectors>
inline constexpr int kEach = kVectors ? 2 : 4;

/// Elements and bytes that the kernels of one device have read.
struct Counters {
  unsigned long long elements, bytes;
};
/// The counters of the thread's current device, in its memory; null if it has none.
Counters* counters() noexcept;

/// A dense matrix, and the destination of the result.
template <class E>
struct Matrix {
  using Word = typename E::Word;
  const Word* data;
  std::int64_t rows, cols, stride;
  std::uint8_t* mask;  // or null
  Word* values;        // or null
  Counters* counters;  // null: the elements are not the caller's

  __host__ __device__ std::int64_t count() const { return rows * cols; }
  __device__ const Word* at(std::int64_t i) const {
    const std::int64_t row = rows == 1 ? 0 : quotient(i, cols);
    return data + row * (stride - cols) + i;
  }
};

/// kVectors: rows begin at multiples of 16 bytes and hold whole vectors, or there is one row, whose last
/// vector may be incomplete; and so do the results.
template <class E, bool kVectors>
struct alignas(kVectors ? 16 : sizeof(typename E::Word)) Unit {
  static constexpr int kCount = kVectors ? 16 / static_cast<int>(sizeof(typename E::Word)) : 1;
  typename E::Word element[kCount];
};

/// Elements per thread block at a time.
template <class E, bool kVectors>
inline constexpr int kTile = kThreads* kEach<kVectors>* Unit<E, kVectors>::kCount;

template <class E>
std::int64_t tiles_of(std::int64_t count, bool vectors) {
  const std::int64_t tile = vectors ? kTile<E, true> : kTile<E, false>;
  return (count + tile - 1) / tile;
}

/// A byte for each of the lowest kCount bits, the lowest one first.
template <int kCount>
__device__ __forceinline__ void store_bits(std::uint8_t* to, unsigned bits) {
  if constexpr (kCount == 8) {
    uint2 bytes;
    bytes.x = (bits & 15u) * 0x00204081u & 0x01010101u;
    bytes.y = (bits >> 4 & 15u) * 0x00204081u & 0x01010101u;
    *reinterpret_cast<uint2*>(to) = bytes;
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = (bits & 15u) * 0x00204081u & 0x01010101u;
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>((bits & 1u) | (bits & 2u) << 7);
  } else {
    *to = static_cast<std::uint8_t>(bits & 1u);
  }
}

template <class E, bool kVectors>
class Reader {
 public:
  using Word = typename E::Word;
  using U = Unit<E, kVectors>;
  __device__ explicit Reader(const Matrix<E>& matrix) : matrix_(matrix) {}

  /// Element i, and those behind it in its unit, of which some may lie behind the end: they are zero.
  __device__ __forceinline__ U load(std::int64_t i) {
    const Word* const from = matrix_.at(i);
    U unit;
    if constexpr (kVectors) {
      const std::int64_t left = matrix_.count() - i;
      if (left >= U::kCount) {
        const uint4 vector = __ldg(reinterpret_cast<const uint4*>(from));
        std::memcpy(&unit, &vector, sizeof(unit));
        read_ += U::kCount;
      } else {
#pragma unroll
        for (int e = 0; e < U::kCount; ++e) unit.element[e] = e < left ? __ldg(from + e) : Word{0};
        read_ += static_cast<unsigned>(left);
      }
    } else {
      unit.element[0] = __ldg(from);
      ++read_;
    }
    return unit;
  }

  /// The element of a row and a column.
  __device__ __forceinline__ Word load_at(std::int64_t row, std::int64_t col) {
    ++read_;
    return __ldg(matrix_.data + row * matrix_.stride + col);
  }

  /// Writes the elements whose bits are set.
  __device__ __forceinline__ void store(std::int64_t i, U unit, unsigned bits) const {
    const std::int64_t left = matrix_.count() - i;
    const bool whole = !kVectors || left >= U::kCount;
    if (matrix_.mask != nullptr) {
      if (whole)
        store_bits<U::kCount>(matrix_.mask + i, bits);
      else
        for (int e = 0; e < left; ++e) matrix_.mask[i + e] = bits >> e & 1u;
    }
    if (matrix_.values == nullptr) return;
#pragma unroll
    for (int e = 0; e < U::kCount; ++e) unit.element[e] = (bits >> e & 1u) != 0 ? unit.element[e] : Word{0};
    if (whole) {
      *reinterpret_cast<U*>(matrix_.values + i) = unit;
    } else {
#pragma unroll
      for (int e = 0; e < U::kCount; ++e)
        if (e < left) matrix_.values[i + e] = unit.element[e];
    }
  }

  /// The first element of this thread's unit u in a tile; at or past the end for units that do not exist.
  __device__ static std::int64_t place(std::int64_t tile, int u) {
    return ((tile * kEach<kVectors> + u) * kThreads + threadIdx.x) * U::kCount;
  }
  /// This thread's units of a tile.
  __device__ __forceinline__ void load_tile(std::int64_t tile, U (&units)[kEach<kVectors>]) {
#pragma unroll
    for (int u = 0; u < kEach<kVectors>; ++u)
      units[u] = place(tile, u) < matrix_.count() ? load(place(tile, u)) : U{};
  }

  /// Adds this thread block's counts to the device's; once, by all threads.
  __device__ __forceinline__ void report() const {
    if (matrix_.counters == nullptr) return;
    __shared__ unsigned long long sums[32];
    const unsigned long long sum = warp_sum(read_);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned long long all = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) all += sums[w];
    atomicAdd(&matrix_.counters->elements, all);
    atomicAdd(&matrix_.counters->bytes, all * sizeof(Word));
  }

 private:
  const Matrix<E>& matrix_;
  unsigned long long read_ = 0;
};

/// The matrix of a call. `flat`: contiguous rows are one row.
template <class E>
Matrix<E> matrix_of(const ConstMatrixView& dense, const SparsifierResult& result, bool flat) {
  Matrix<E> m{static_cast<const typename E::Word*>(dense.data),
              dense.rows,
              dense.cols,
              dense.stride,
              reinterpret_cast<std::uint8_t*>(result.mask),
              static_cast<typename E::Word*>(result.values),
              counters()};
  if (m.rows == 1) m.stride = m.cols;
  if (flat && m.stride == m.cols) m.cols *= m.rows, m.stride = m.cols, m.rows = 1;
  return m;
}

/// Whether Unit<E, true> may be used.
template <class E>
bool has_vectors(const Matrix<E>& m) {
  constexpr int kCount = Unit<E, true>::kCount;
  const auto aligned = [](const void* at, std::uintptr_t to) {
    return reinterpret_cast<std::uintptr_t>(at) % to == 0;
  };
  return aligned(m.data, 16) && aligned(m.values, 16) && aligned(m.mask, kCount) &&
         (m.rows == 1 || (m.cols % kCount == 0 && m.stride % kCount == 0));
}

}  // namespace sparseloom::kernels::cuda::sparsify
