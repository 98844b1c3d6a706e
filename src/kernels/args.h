// What a kernel gets: plain data, shared by all backends. Borrowed for one call; a kernel owns and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/candidate.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels {

/// One product. All matrices row-major with unit column stride, all of `dtype`; W is [rows, cols] = index.rows x index.cols.
///   forward: out [m, rows] = act(a [m, cols] W^T + bias)
///   dx:      out [m, cols] = a [m, rows] W
///   dw:      out [blocks, bm, bn] = a^T b at the stored blocks; a = dY [m, rows], b = X [m, cols]; padding is written as zero
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
  /// [n + 1] running cost over block rows (forward) or block columns (dx); tasks cut [0, cost_prefix[n]) evenly. Null for dw and on
  /// CUDA.
  const std::int64_t* cost_prefix = nullptr;
  std::byte* workspace = nullptr;  // KernelInfo::workspace_bytes bytes, 64-byte aligned (256 on CUDA), of any content
  // CUDA kernels only. All pointers above are then device pointers of `device`, which is the thread's current one.
  int device = -1;
  void* stream = nullptr;  // cudaStream_t
  bool tf32 = false;       // Problem::tf32
};

/// A row of the registry: what plan needs to choose, and the launch.
struct Kernel {
  plan::KernelInfo info;
  /// Runs the product on executor's threads, or queues it on args.stream. 0, or the cudaError_t of a launch that failed. Throws
  /// nothing of its own (what executor's callbacks throw passes through).
  int (*launch)(const MatmulArgs& args, const Executor& executor);
};

}  // namespace sparseloom::kernels
