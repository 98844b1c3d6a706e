// dW of bitmap weights: a dense product in registers, of which VPCOMPRESS keeps the stored elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/bitmap.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

/// Columns of a panel of x, of which a row's 64 bits say what is stored.
inline constexpr std::int64_t kBitmapDwCols = 64;
/// Most bytes of both operands in cells, which are a workspace.
inline constexpr std::size_t kBitmapDwMostBytes = std::size_t{1} << 26;

/// Both operands in cells of 4 bytes, which hold one token in fp32, or two in bf16.
struct BitmapDwJob {
  const MatmulArgs& args;
  BitmapView w;
  std::int64_t steps;      // cells of the tokens
  std::int64_t dy_stride;  // steps, rounded up to whole lines
  float* x;                // [panels][steps][kBitmapDwCols], with zeros behind the last column
  float* dy;               // [rows, rounded up to kBitmapRows][dy_stride], with zeros behind them
};

struct BitmapDwOps {
  Runs* runs;
  std::int64_t tokens_of_cell;
  /// Writes the steps [begin, end) of job.x.
  void (*prepare_x)(const BitmapDwJob& job, std::int64_t begin, std::int64_t end);
  /// Writes the rows [begin, end) of job.dy; begin is a multiple of kLineCells.
  void (*prepare_dy)(const BitmapDwJob& job, std::int64_t begin, std::int64_t end);
  /// Writes the values of rows [begin, end); begin is a multiple of kBitmapRows.
  void (*rows)(const BitmapDwJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t bitmap_dw_workspace(const BitmapDwOps& ops, const BitmapView& w, std::int64_t m);
void run_bitmap_dw(const BitmapDwOps& ops, const MatmulArgs& args, const BitmapView& w,
                   const Executor& executor);

/// fp32, f16 and bf16; bf16 by VDPBF16PS.
extern const BitmapDwOps kBitmapDwAvx512, kBitmapDwPairs;

}  // namespace sparseloom::kernels::cpu
