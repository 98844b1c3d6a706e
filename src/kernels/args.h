// What a kernel gets: plain data, shared by all backends. Borrowed for one call; a kernel owns and allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/candidate.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels {

/// One product. All matrices row-major with unit column stride, all of `dtype` but for 8-bit products' out
/// and bias; W is [rows, cols] = index.rows x index.cols.
///   forward: out [m, rows] = act(a [m, cols] W^T + bias) + residual, added in fp32 before the one rounding
///   dx:      out [m, cols] = a [m, rows] W
///   dw:      out [blocks, bm, bn] = a^T b at the stored blocks; a = dY [m, rows], b = X [m, cols]; padding
///   is written as zero
///            accumulate: out, fp32, += the sums unrounded; to padding, which is zero by contract, nothing is
///            added
/// 8-bit operands (is_scaled(dtype)), forward only, out and bias of out_dtype:
///   sum[t, o] = a [t, :] W[o, :]^T        i8: in int32, exact (make_plan admits no reduction that could
///   overflow it); f8: in fp32 out[t, o] = act(fma(float(sum) * a_scale, w_scale, bias[o]))
/// in fp32, that is three roundings in this order: of float(sum) where |sum| > 2^24, of its product with the
/// token's scale, and of the fused multiplication by the output's scale and addition of the bias, which is 0
/// where there is none; then act, then the rounding to out_dtype. Every i8 kernel without activation thus
/// writes the reference's bits. A scale of 0, Inf or NaN needs no case of its own: 0 * Inf is NaN, as is
/// whatever meets one.
struct MatmulArgs {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  Activation activation = Activation::none;  // forward only
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
  void* pre =
      nullptr;  // forward only, rows with stores_pre: also round(a W^T + bias), what a gradient of act needs
  std::int64_t pre_stride = 0;
  const void* residual = nullptr;  // forward only, [m, rows] as out, or null
  std::int64_t residual_stride = 0;
  bool accumulate = false;         // dw only
  DType out_dtype = DType::f32;    // 8-bit operands only: bf16 or f32, of out and bias
  const float* a_scale = nullptr;  // 8-bit operands only, never null then: [m] when a_scale_each, else [1]
  const float* w_scale = nullptr;  // [rows] when w_scale_each, else [1]
  bool a_scale_each = false;       // one factor for each token, else one for all
  bool w_scale_each = false;       // one for each output feature
  /// [n + 1] running cost over block rows (forward) or block columns (dx); tasks cut [0, cost_prefix[n])
  /// evenly. Null for dw and on CUDA.
  const std::int64_t* cost_prefix = nullptr;
  /// CUDA, forward and dx: the order of block rows or columns, one uint16 for each, on the host. Null: as
  /// they lie.
  const std::uint16_t* line_order = nullptr;
  bool uneven_lines = false;  // Plan::uneven_lines
  /// CUDA, kernels that merge blocks: the lists of index (forward) or transposed (dx) begin where those say
  /// and end here, [lines]; index.blocks is what there is room for, likely_blocks what is expected. Null and
  /// 0: each list ends where the next begins.
  const std::int32_t* line_end = nullptr;
  std::int64_t likely_blocks = 0;
  std::byte* workspace =
      nullptr;  // KernelInfo::workspace_bytes bytes, 64-byte aligned (256 on CUDA), of any content
  // CUDA kernels only. All pointers above are then device pointers of `device`, which is the thread's current
  // one.
  int device = -1;
  void* stream = nullptr;   // cudaStream_t
  bool tf32 = false;        // Problem::tf32
  bool fast_accum = false;  // Problem::fast_accum
};

/// A row of the registry: what plan needs to choose, and the launch.
struct Kernel {
  plan::KernelInfo info;
  /// Runs the product on executor's threads, or queues it on args.stream. 0, or the cudaError_t of a launch
  /// that failed. Throws nothing of its own (what executor's callbacks throw passes through).
  int (*launch)(const MatmulArgs& args, const Executor& executor);
  bool stores_pre =
      false;  // heeds args.pre; for the others pre is their output and the activation a pass of its own
};

}  // namespace sparseloom::kernels
