// Parameters of the kernels of sm90_decode_lines.
//
// A block row is cut into strips of 32 outputs (16 x 16 blocks: of 16, the whole block row).
// Params::block_rows counts block rows, not strips.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::decode_lines {

inline constexpr int kStrip = 32;  // outputs of a strip: two mma of 16

/// Passed by value.
struct Params {
  CUtensorMap w;  // [blocks * bm, bn], for wide blocks
  const void* values = nullptr;
  const std::int32_t* crow = nullptr;
  const std::int32_t* col = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  const void* residual = nullptr;
  void* out = nullptr;
  std::int64_t x_stride = 0, out_stride = 0, residual_stride = 0;  // elements
  std::int32_t blocks = 0;
  std::int32_t rows = 0, cols = 0;  // of W
  std::int32_t block_rows = 0;
  int strips_log2 = 0;  // log2 of the strips in a block row
  int bn_log2 = 0;      // log2 of a block's columns
  int m = 0;
  Activation activation = Activation::none;
  bool out_fours = false;  // whether four outputs may be stored at once
};

}  // namespace sparseloom::kernels::cuda::decode_lines
