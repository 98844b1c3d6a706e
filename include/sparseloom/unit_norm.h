// A LayerNorm between the steps of a recurrent cell, with the cell's operations on its result: an input that
// scales or is added to some units, and relu. Separate pointwise passes would take more time than the sparse
// product before them.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// Shares of the rows that sum the gradients of weight and bias, each into a row of its own.
inline constexpr std::int64_t kUnitNormParts = 8;

/// n rows of `groups` x `hidden` units; each group of a row has its own mean and variance. All matrices are
/// dense in memory, row by row, and lie on the executor's device.
struct UnitNorm {
  DType dtype = DType::f32;  // of all but the statistics
  std::int64_t n = 0, groups = 1, hidden = 0;
  // Units of a group that lie side by side in z and dz, then as many of the next group; 0: all of them, as in
  // all other matrices. With 32, the four gates of 32 units are one block row of a product.
  std::int64_t side = 0;
  const void* z = nullptr;                        // [n, groups x hidden]
  const void *weight = nullptr, *bias = nullptr;  // [groups x hidden]
  // [n, ceil(hidden / stride)], or null: one number for every stride-th unit of one group
  const void* extra = nullptr;
  std::int64_t stride = 1, group = 0;
  bool multiply = false;  // by extra x scale; otherwise extra x scale is added
  double scale = 1;
  bool relu = false;
  double eps = 1e-5;
  void* y = nullptr;  // [n, groups x hidden]; may be z if side is 0
  void* statistics =
      nullptr;  // [n, groups, 2] of fp32 (of fp64 beside fp64): mean and 1 / deviation, or null
};

/// y = relu(extra(norm(z) weight + bias)), computed in the dtype of the statistics and rounded once. The
/// dtype is f64 (CPU only), f32, f16 or bf16. On CUDA: one launch, queued and not waited for. Throws Error on
/// another dtype, a negative size, a stride or group that does not fit, or a null pointer where null has no
/// meaning.
SPARSELOOM_API void unit_norm(const UnitNorm& norm, const Executor& executor);

/// The gradient of one unit_norm, whose y is not read.
struct UnitNormGradient {
  UnitNorm norm;             // its statistics are read
  const void* dy = nullptr;  // [n, groups x hidden]
  void* dz = nullptr;        // [n, groups x hidden]; may be dy if side is 0
  void* dextra = nullptr;    // as extra, or null
  void* means = nullptr;     // as the statistics: scratch
  void* sums = nullptr;      // [kUnitNormParts, 2, groups x hidden] of the statistics' dtype, or null: the
                             // gradients of weight and bias are added to them
};
/// On CUDA two launches. Sums have a fixed order.
SPARSELOOM_API void unit_norm_gradient(const UnitNormGradient& norm, const Executor& executor);

}  // namespace sparseloom
