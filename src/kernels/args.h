// Kernel, a row of the registry: what the plan needs to choose it, and its launch.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/executor.h"
#include "sparseloom/extension.h"

namespace sparseloom::kernels {

/// A row of the registry: what the plan needs to choose the kernel, and its launch.
struct Kernel {
  plan::KernelInfo info;
  /// Runs the product on the executor's threads, or queues it on args.stream. Returns 0, or the cudaError_t
  /// of a launch that failed. Throws nothing of its own (what the executor's callbacks throw passes through).
  /// Null for a kernel from outside, whose launch is info.outside->launch.
  int (*launch)(const MatmulArgs& args, const Executor& executor);
  /// Whether the kernel writes args.pre. A caller that needs `pre` of another kernel has it write `pre` as
  /// its output and applies the activation in a pass of its own.
  bool stores_pre = false;
  /// Whether forward of f32 adds args.residual. Otherwise args has none, and the caller adds it to y in a
  /// pass of its own, which rounds as often: y is fp32.
  bool adds_f32_residual = true;
};

}  // namespace sparseloom::kernels
