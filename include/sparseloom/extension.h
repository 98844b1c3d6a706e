// For kernels from outside of the library: what a kernel gets, and how it enters the registry from which
// plans choose. docs/add_a_kernel.md has an example.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/plan.h"

namespace sparseloom {

/// One product. All matrices are row-major with unit column stride, and all are of `dtype` except out and
/// bias of 8-bit products. W is [rows, cols] = index.rows x index.cols.
///
///   forward  out [m, rows] = act(a [m, cols] W^T + bias) + residual, added in fp32 before the only rounding
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
  /// (dx: of transposed) ends; it begins where crow or ccol says. index.blocks is then the capacity, and
  /// likely_blocks the expected number. Null and 0: each list ends where the next one begins.
  const std::int32_t* block_row_end = nullptr;
  std::int64_t likely_blocks = 0;
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

extern "C" {

/// Changes when a member of SparseloomKernel, or what a function of it may expect, does.
#define SPARSELOOM_KERNEL_ABI 1u

/// A kernel from outside, as a row of the registry. Everything that it points to has to live as long as the
/// process. The functions may be called by several threads at once, and throw nothing.
struct SparseloomKernel {
  std::uint32_t size;           // sizeof(SparseloomKernel)
  std::uint32_t abi;            // SPARSELOOM_KERNEL_ABI
  std::uint32_t problem_size;   // sizeof(sparseloom::Problem)
  std::uint32_t args_size;      // sizeof(sparseloom::MatmulArgs)
  const char* name;             // unlike every other row's
  std::uint32_t on_cuda;        // 0: for operands on the CPU, 1: on CUDA devices
  std::uint32_t needs_aligned;  // 1: only problems that are `aligned`
  /// Why the kernel cannot run the problem, in words that a user can act on; null if it can. 8-bit operands
  /// are refused without asking.
  const char* (*refusal)(const sparseloom::Problem* problem);
  /// The predicted time of a call in microseconds; the plan takes the lowest. Asked only if it does not
  /// refuse.
  double (*predict_us)(const sparseloom::Problem* problem);
  /// Bytes of workspace; null: none.
  std::size_t (*workspace_bytes)(const sparseloom::Problem* problem);
  /// Runs the product on the executor's threads, or queues it on args->stream. Returns 0 or a cudaError_t.
  int (*launch)(const sparseloom::MatmulArgs* args, const sparseloom::Executor* executor);
};

/// What sparseloom_register_kernel returns instead of a row's number.
enum {
  SPARSELOOM_OTHER_ABI = -1,   // the caller was built with other headers than the library: build it again
  SPARSELOOM_INCOMPLETE = -2,  // a name or function is missing
  SPARSELOOM_NAME_TAKEN = -3,  // another row has that name
  SPARSELOOM_FULL = -4,        // there are 64 kernels from outside
};

/// Adds a kernel to the registry of the process, for C++ and PyTorch alike. Returns its row, which it keeps,
/// or one of the numbers above. Plans made before are not made again: they know the rows of their time. Any
/// thread may call it at any time.
SPARSELOOM_API int sparseloom_register_kernel(const SparseloomKernel* kernel);

}  // extern "C"
