// The spread kernel: dX. A tile of W is unpacked into L1 and multiplied there by all tokens, which are the
// lanes: W's dense form is never in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Tokens of a vector.
inline constexpr std::int64_t kSpreadLanes = 8;
/// Groups of a unit, an even number.
inline constexpr std::int64_t kSpreadGroups = 16;
/// Most tokens: their sums of one unit take 16 kB.
inline constexpr std::int64_t kSpreadMostTokens = 64;

/// The arguments of a kernel.
struct SpreadJob {
  const MatmulArgs& args;
  Semi24View w;
  /// dY in fp32 as [vectors][rows][kSpreadLanes tokens], zero past the last token.
  float* dy;
};

struct SpreadOps {
  Runs* runs;  // the kernel's count of its runs
  /// Writes SpreadJob::dy for the rows of W [begin, end).
  void (*pack_dy)(const SpreadJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const SpreadJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t spread_workspace(std::int64_t m, std::int64_t rows);
void run_spread(const SpreadOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
