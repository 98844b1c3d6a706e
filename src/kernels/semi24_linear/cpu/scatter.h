// The scatter kernel: dX. Each stored element multiplies the gradients of its output, tokens on the lanes,
// and is added to its column's sums: absent elements are not multiplied, and W is not unpacked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Most tokens: the lanes of a vector.
inline constexpr std::int64_t kScatterTokens = 8;
/// Groups of a unit, an even number. Its sums, and those of the rows before, take 16 kB.
inline constexpr std::int64_t kScatterGroups = 64;

/// The arguments of a kernel.
struct ScatterJob {
  const MatmulArgs& args;
  Semi24View w;
  /// dY in fp32 as [rows][kScatterTokens], zero past the last token.
  float* dy;
};

struct ScatterOps {
  Runs* runs;  // the kernel's count of its runs
  /// Writes ScatterJob::dy for the rows of W [begin, end).
  void (*pack_dy)(const ScatterJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const ScatterJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t scatter_workspace(std::int64_t rows);
void run_scatter(const ScatterOps& ops, const MatmulArgs& args, const Semi24View& w,
                 const Executor& executor);

}  // namespace sparseloom::kernels::cpu
