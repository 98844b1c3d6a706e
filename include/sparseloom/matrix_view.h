// Non-owning views of row-major matrices. Dense memory enters and leaves the library only through them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "sparseloom/dtype.h"

namespace sparseloom {

/// rows x cols elements of `dtype`; element (r, c) lies at data[r * stride + c]. stride counts elements and
/// is at least cols.
struct ConstMatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
};

/// The writable counterpart of ConstMatrixView.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  operator ConstMatrixView() const noexcept { return {data, dtype, rows, cols, stride}; }
};

/// Whether an address, or the base of a matrix and the distance between its rows (if it has several), are
/// multiples of 16 bytes. Null is. A matrix of at most 64 rows must also lie within 2 GB, since kernels for
/// small batches count its bytes in 32 bits.
inline bool is_aligned(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}
inline bool is_aligned(const ConstMatrixView& matrix) noexcept {
  const auto bytes = static_cast<std::int64_t>(size_of(matrix.dtype));
  return is_aligned(matrix.data) && (matrix.rows <= 1 || matrix.stride * bytes % 16 == 0) &&
         (matrix.rows > 64 || matrix.rows * matrix.stride * bytes < std::int64_t{1} << 31);
}

/// A view of float or double memory. Its rows lie `stride` elements apart, or follow each other when stride <
/// 0.
template <class T>
requires std::is_same_v<T, float> || std::is_same_v<T, double> MatrixView view(T* data, std::int64_t rows,
                                                                               std::int64_t cols,
                                                                               std::int64_t stride = -1)
noexcept { return {data, sizeof(T) == 4 ? DType::f32 : DType::f64, rows, cols, stride < 0 ? cols : stride}; }
template <class T>
requires std::is_same_v<T, float> || std::is_same_v<T, double> ConstMatrixView view(const T* data,
                                                                                    std::int64_t rows,
                                                                                    std::int64_t cols,
                                                                                    std::int64_t stride = -1)
noexcept { return {data, sizeof(T) == 4 ? DType::f32 : DType::f64, rows, cols, stride < 0 ? cols : stride}; }

}  // namespace sparseloom
