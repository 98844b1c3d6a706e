// The select kernels: the forward product of few tokens, whose time is that of reading W. Each stored element
// selects its x from the four of its group: absent elements are not multiplied.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Tokens multiplied by a unit's rows of W before the next tokens.
inline constexpr int kSelectTokens = 16;
/// Groups per step: 4 bytes of positions.
inline constexpr int kSelectGroups = 8;
/// Outputs per unit of work. Their sums and one block of x are in L1; the more outputs, the more often a
/// block of x is used before the next one comes from L2.
inline constexpr int kSelectOutputs = 32;

/// The arguments of a kernel.
struct SelectJob {
  const MatmulArgs& args;
  Semi24View w;
  /// x in fp32 as [steps of kSelectGroups groups][tokens][columns of a step], zero past w.cols; the kernel
  /// defines the order of a step's columns.
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
