// Non-owning row-major matrices: the only way dense memory enters and leaves the library.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom {

/// rows x cols elements of `dtype`; element (r, c) lies at data[r * stride + c]. stride counts elements and is >= cols.
struct ConstMatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
};

/// The writable twin of ConstMatrixView.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  operator ConstMatrixView() const noexcept { return {data, dtype, rows, cols, stride}; }
};

}  // namespace sparseloom
