// Host side of TMA: descriptions of row-major matrices. Contract of the device side: ptx/sm90/tma.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda {

/// A matrix of height x width elements of dtype (any but f64), stride_bytes from row to row. tf32: what is
/// read of f32 is rounded on its way to 10 explicit mantissa bits; wgmma alone would cut them off, at twice
/// the error and all of it towards zero.
struct TensorMapMatrix {
  const void* data;
  DType dtype;
  std::int64_t height, width, stride_bytes;
  bool tf32 = false;
};

/// Rows and columns of one copy; at most 256 rows. swizzle_bytes: the width of a row, 128 or 64.
struct TensorMapBox {
  int rows, columns, swizzle_bytes;
};

/// Whether TMA can address the matrix: 16-byte aligned base and rows, fewer than 2^31 rows and columns
/// (coordinates are signed).
bool tensor_map_possible(const TensorMapMatrix& matrix) noexcept;

/// False when the driver refuses, or is too old to know tensor maps.
bool encode_tensor_map(CUtensorMap& map, const TensorMapMatrix& matrix, const TensorMapBox& box) noexcept;

}  // namespace sparseloom::kernels::cuda
