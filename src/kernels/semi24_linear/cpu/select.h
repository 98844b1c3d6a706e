// The select kernels: the forward product of up to 16 tokens with the tokens on lanes. Each stored element
// picks the vector of its column, which holds x of all tokens, and multiplies it: nothing is multiplied for
// elements that are not stored. An expand kernel does twice the products, but several at a time for a token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kSelectTokens = 16;
/// Groups of one step: 8 bytes of positions.
inline constexpr int kSelectGroups = 16;
/// Outputs of one unit of work. Their sums and one block of x lie in L1; the more outputs, the more often a
/// block of x is used before the next one comes from L2.
inline constexpr int kSelectOutputs = 128;

/// One call, as the kernels see it.
struct SelectJob {
  const MatmulArgs& args;
  Semi24View w;
  /// x as [groups rounded up to kSelectGroups][choices][tokens rounded up to vectors], four bytes each, zero
  /// beyond w.cols: the choices are the four columns of a group in fp32, or its six pairs of columns in bf16.
  std::byte* x;
};

struct SelectOps {
  Runs* runs;  // the kernel's count of its runs
  /// Bytes of SelectJob::x for one group.
  std::int64_t (*group_bytes)(std::int64_t tokens);
  /// Writes SelectJob::x for the groups [begin, end).
  void (*pack_x)(const SelectJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const SelectJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t select_workspace(const SelectOps& ops, std::int64_t m, std::int64_t cols);
void run_select(const SelectOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
