// The decode kernels, for small batches (up to 8 tokens). Their time is the time to read the stored blocks,
// so each block is read once and never packed.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/cell.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kDecodeTokens = 8;

/// A range of a call's output units. A unit is 8 rows of W (forward), or a strip of columns inside one block
/// column (dx).
struct DecodeRange {
  std::int64_t begin, end;
};

using DecodeFunction = void (*)(const MatmulArgs& args, DecodeRange units);

struct DecodeOps {
  Runs* runs;  // the kernel's count of its runs
  int lanes;
  DecodeFunction (*function)(DType dtype, Direction direction, std::int64_t tokens);
  std::int64_t (*dx_strip)(std::int64_t tokens, std::int64_t block_cols);  // columns per dx unit
};

void run_decode(const DecodeOps& ops, const MatmulArgs& args, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
