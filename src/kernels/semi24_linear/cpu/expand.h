// The expand kernels: the forward product of 1 to 16 tokens, whose time is that of reading W. A step loads
// the stored elements of a few rows, expands them in registers to their columns in W with zeros between them,
// and multiplies those vectors by the same columns of each token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kExpandTokens = 16;
/// Groups per step of the outer loop: their positions are one register of 16 bytes.
inline constexpr int kExpandGroups = 32;
/// Outputs per unit of work: kernels compute 1, 2, 3 or 4 of them at a time.
inline constexpr int kExpandOutputs = 24;

/// The arguments of a kernel.
struct ExpandJob {
  const MatmulArgs& args;
  Semi24View w;
  // The tokens [args.m, x_stride]: fp32, or bf16 if the kernel multiplies pairs of bf16; zero past w.cols.
  const void* x;
  std::int64_t x_stride;  // elements, a multiple of 4 kExpandGroups
};

struct ExpandOps {
  Runs* runs;           // the kernel's count of its runs
  std::size_t x_bytes;  // bytes of an element of ExpandJob::x
  /// Writes ExpandJob::x.
  void (*pack_x)(const MatmulArgs& args, std::int64_t cols, void* x, std::int64_t x_stride);
  /// Computes the units [begin, end).
  void (*units)(const ExpandJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t expand_workspace(const ExpandOps& ops, std::int64_t m, std::int64_t cols);
void run_expand(const ExpandOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

/// Maps the positions of a group to masks.
struct ExpandTables {
  /// For each half byte: a bit per stored column of its group; and the same four bits up.
  std::uint8_t low[16], high[16];
};

inline constexpr ExpandTables kExpandTables = [] {
  ExpandTables tables{};
  for (unsigned half = 0; half < 16; ++half) {
    tables.low[half] = static_cast<std::uint8_t>(1u << (half & 3u) | 1u << (half >> 2));
    tables.high[half] = static_cast<std::uint8_t>(tables.low[half] << 4);
  }
  return tables;
}();

}  // namespace sparseloom::kernels::cpu
