// The select kernels: the forward product of few tokens, whose time is that of reading W. Each stored element
// picks its x from the four of its group: nothing is multiplied for elements that are not stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Tokens that are multiplied by a unit's rows of W before the next ones.
inline constexpr int kSelectTokens = 16;
/// Groups of one step: 4 bytes of positions.
inline constexpr int kSelectGroups = 8;
/// Outputs of one unit of work. Their sums and one block of x lie in L1; the more outputs, the more often a
/// block of x is used before the next one comes from L2.
inline constexpr int kSelectOutputs = 32;

/// One call, as the kernels see it.
struct SelectJob {
  const MatmulArgs& args;
  Semi24View w;
  /// x in fp32 as [groups rounded up to kSelectGroups, a step each][tokens][columns of a step], zero beyond
  /// w.cols; the order of a step's columns is the kernel's.
  std::byte* x;
};

struct SelectOps {
  Runs* runs;  // the kernel's count of its runs
  /// Writes SelectJob::x for the steps [begin, end).
  void (*pack_x)(const SelectJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const SelectJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t select_workspace(std::int64_t m, std::int64_t cols);
void run_select(const SelectOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
