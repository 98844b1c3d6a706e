// Host side of TMA: it describes row-major matrices by tensor maps. ptx/sm90/tma.cuh has the contract of the
// device side.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::kernels::cuda {

/// A matrix of height x width elements of dtype (any but f64), with a row stride of stride_bytes. With tf32,
/// f32 is rounded to 10 explicit mantissa bits as it is copied; wgmma would truncate the other bits, at twice
/// the error and always towards zero.
struct TensorMapMatrix {
  const void* data;
  DType dtype;
  std::int64_t height, width, stride_bytes;
  bool tf32 = false;
};

/// Rows and columns of one copy; at most 256 rows. swizzle_bytes is the width of a row, 128 or 64.
struct TensorMapBox {
  int rows, columns, swizzle_bytes;
};

/// Whether TMA can address the matrix: its base and rows are 16-byte aligned, and it has fewer than 2^31 rows
/// and columns (coordinates are signed).
bool tensor_map_possible(const TensorMapMatrix& matrix) noexcept;

/// Returns false if the driver refuses, or is too old to support tensor maps.
bool encode_tensor_map(CUtensorMap& map, const TensorMapMatrix& matrix, const TensorMapBox& box) noexcept;

/// Null if there is no driver, or it has no such function.
void* find_in_driver(const char* name) noexcept;

}  // namespace sparseloom::kernels::cuda
