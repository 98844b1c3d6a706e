// The gather kernel: forward of many tokens. Each stored element multiplies the tokens of its column, which
// are the lanes of some vectors: absent elements are not multiplied, and W is not unpacked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Tokens of a vector.
inline constexpr std::int64_t kGatherLanes = 8;
/// Most vectors of tokens per panel: their sums, one weight and what the compiler needs fill the registers.
inline constexpr std::int64_t kGatherVectors = 12;
/// Outputs per unit of work, whose sums stay in L1 beside a block of columns of x.
inline constexpr std::int64_t kGatherOutputs = 32;

/// How the tokens are divided: panels of equally many vectors.
struct GatherPanels {
  std::int64_t panels, vectors;
  explicit GatherPanels(std::int64_t m) {
    const std::int64_t all = std::max<std::int64_t>(1, core::ceil_div(m, kGatherLanes));
    panels = core::ceil_div(all, kGatherVectors), vectors = core::ceil_div(all, panels);
  }
};

/// The columns that a packed x has: zero past the last one.
inline std::int64_t gather_depth(std::int64_t cols) { return core::round_up(cols, kGatherLanes); }

/// The arguments of a kernel.
struct GatherJob {
  const MatmulArgs& args;
  Semi24View w;
  GatherPanels panels;
  /// x in fp32 as [panels][gather_depth][vectors * kGatherLanes tokens].
  float* x;
};

struct GatherOps {
  Runs* runs;  // the kernel's count of its runs
  /// Writes GatherJob::x for the columns [begin, end); begin is a multiple of kGatherLanes.
  void (*pack_x)(const GatherJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const GatherJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t gather_workspace(std::int64_t m, std::int64_t cols);
void run_gather(const GatherOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
