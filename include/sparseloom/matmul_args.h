// MatmulArgs: the operands of one product, as a kernel gets them.
//
// CUDA kernels include this and the Schedule, but neither Problem nor Plan: these may change without
// compiling the kernels again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/activation.h"
#include "sparseloom/direction.h"
#include "sparseloom/dtype.h"
#include "sparseloom/layout.h"

namespace sparseloom {

/// One product. All matrices are row-major with unit column stride, and all are of `dtype` except out and
/// bias of 8-bit products. W is [rows, cols] = index.rows x index.cols.
///
///   forward  out [m, rows] = act(a [m, cols] W^T + bias) + residual, added in fp32 before the only rounding
///   glu      out [m, rows] = act(round(a W^T + bias)) round(a V^T + factor_bias), a gated linear unit
///            (Shazeer 2020): forward with a second weight V of W's shape and blocks of the same sides
///   dx       out [m, cols] = a [m, rows] W
///   dw       out [blocks, bm, bn] = a^T b at the stored blocks; a = dY [m, rows], b = X [m, cols].
///            Padding is written as zero. With `accumulate`, out is fp32 and the unrounded sums are added to
///            it; padding, which is zero by contract, is left alone.
///
/// 8-bit operands (is_scaled(dtype)) have forward only; out and bias are of out_dtype:
///
///   sum[t, o] = a [t, :] W[o, :]^T
///   out[t, o] = act(fma(float(sum[t, o]) * a_scale, w_scale, bias[o]))
///
/// The sum is exact in int32 for i8 (make_plan admits no reduction that could overflow it) and is in fp32 for
/// f8. The second line is computed in fp32 with three roundings in this order: of float(sum) where
/// |sum| > 2^24; of its product with the token's scale; and of the fused multiplication by the output's scale
/// and addition of the bias, which is 0 where there is none. Then come act and the rounding to out_dtype. So
/// every i8 kernel without activation writes the reference's bits. A scale of 0, Inf or NaN needs no case of
/// its own: 0 * Inf is NaN, and so is everything computed from a NaN.
struct MatmulArgs {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  Activation activation = Activation::none;  // forward only
  bool glu = false;                          // forward of 16 bits, for kernels with the trait `glu`
  std::int64_t m = 0;
  const void* a = nullptr;
  std::int64_t a_stride = 0;  // elements
  const void* b = nullptr;    // dw only
  std::int64_t b_stride = 0;
  IndexView index;
  TransposedView transposed;     // dx only
  const void* values = nullptr;  // forward and dx: [blocks, bm, bn]
  const void* bias = nullptr;    // forward only, [rows] or null
  void* out = nullptr;
  std::int64_t out_stride = 0;  // forward and dx
  // glu only: V, whose products are the factors of the gates, as W above.
  IndexView factor_index;
  const void* factor_values = nullptr;
  const void* factor_bias = nullptr;
  /// Forward only, and only for kernels with `stores_pre`: they also write round(a W^T + bias) here, which
  /// the gradient of act needs.
  void* pre = nullptr;
  std::int64_t pre_stride = 0;
  const void* residual = nullptr;  // forward only, [m, rows] like out, or null
  std::int64_t residual_stride = 0;
  bool accumulate = false;         // dw only
  DType out_dtype = DType::f32;    // of out and bias; 8-bit operands only: bf16 or f32
  const float* a_scale = nullptr;  // 8-bit operands only, then never null: [m] when a_scale_each, else [1]
  const float* w_scale = nullptr;  // [rows] when w_scale_each, else [1]
  bool a_scale_each = false;       // one scale for each token, else one for all
  bool w_scale_each = false;       // one scale for each output feature, else one for all
  /// CUDA, forward and dx: the order in which to take block rows or block columns, one uint16 each, in host
  /// memory. Null: in ascending order.
  const std::uint16_t* block_row_order = nullptr;
  /// Hints of the same origin: some block row (dx: block column) is much longer than the mean, and some group
  /// of them is (src/plan/evenness.h).
  bool uneven_block_rows = false, uneven_groups = false;
  /// CUDA kernels that merge blocks: where the list of each block row (forward: of index) or block column
  /// (dx: of transposed) ends; it begins where crow or ccol says, and index.blocks is the capacity. Null:
  /// each list ends where the next one begins.
  const std::int32_t* block_row_end = nullptr;
  /// As many bytes as the row said, of any content, aligned to 64 bytes (256 on CUDA).
  std::byte* workspace = nullptr;
  // The members below are for CUDA kernels only. All operand pointers above are then device pointers of
  // `device`, which is the thread's current device.
  int device = -1;
  void* stream = nullptr;   // cudaStream_t
  bool tf32 = false;        // Problem::tf32
  bool fast_accum = false;  // Problem::fast_accum
};

}  // namespace sparseloom
