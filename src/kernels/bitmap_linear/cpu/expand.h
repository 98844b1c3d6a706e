// The expand kernels: stored elements are read packed, spread over the lanes of a vector by the bits of their
// columns, and multiplied as a dense weight, the zeros between included.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/cell.h"
#include "sparseloom/bitmap.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

/// Tokens of a pass, for which W is expanded once, or with tokens in the lanes once for several passes.
inline constexpr std::int64_t kBitmapTokens = 64;
/// Up to this many tokens, forward multiplies expanded vectors out of registers.
inline constexpr std::int64_t kBitmapFewTokens = 4;
/// Passes for which forward by AVX-512 expands W once, with tokens in the lanes.
inline constexpr std::int64_t kBitmapMostTokens = 4 * kBitmapTokens;
/// Whether it has them there: enough of them, which nearly fill vectors. Cycles of a Zen 5 for 32 columns are
/// 5 + .52 a lane, with columns in the lanes 4.6 + .61 a token.
inline constexpr bool bitmap_by_tokens(std::int64_t m) {
  return m >= 28 && 6 * ((m + kLineCells - 1) / kLineCells * kLineCells) <= 7 * m;
}
/// Elements of W that dX expands into L1 at once; 32 KB.
inline constexpr std::int64_t kBitmapExpanded = 8192;
/// Rows of forward's work items are cut at multiples of this, columns of dX's at the other.
inline constexpr std::int64_t kBitmapRows = kLineCells, kBitmapCols = 64;
/// Columns of the widest vector, to which a row of x is padded.
inline constexpr std::int64_t kBitmapVector = 64;

/// Columns of W that dX expands at once. Few tokens need little room for their sums, and long pieces of a row
/// are read faster.
inline constexpr std::int64_t bitmap_dx_cols(std::int64_t m) { return m <= kBitmapFewTokens ? 2048 : 512; }

struct BitmapJob {
  const MatmulArgs& args;
  BitmapView w;
  const void* x;          // forward: X, dX: dY, [m][x_stride] as BitmapOps::prepare wrote it
  std::int64_t x_stride;  // elements, a multiple of kBitmapVector
  // x in cells of 4 bytes, [x_stride elements as cells][tokens] for each kBitmapTokens tokens; those of the
  // last ones are rounded up to whole vectors. Null: the tokens are few, or the kernel has no such forward.
  const float* cells;
  std::int64_t tokens_at_once;  // whole passes whose x stays in L2
  bool finite;                  // all of x
  // A vector may be read past the end of a row. From row `tail` on, the values are read from a copy that has
  // room behind it; tail_values is where element 0 of all values would be.
  std::int64_t tail;
  const std::byte* tail_values;
};

/// What dX keeps of a work item: floats [kBitmapTokens * columns] twice, then an int32 for each row of W.
struct BitmapRoom {
  float* sums;
  float* whole;
  std::int32_t* next;
};

struct BitmapOps {
  Runs* runs;
  /// Bytes of an element of x as it is multiplied.
  std::int64_t x_bytes;
  /// to [room] = from [n] as it is multiplied, with zeros past n. Returns whether all are finite.
  bool (*prepare)(DType dtype, const void* from, std::int64_t n, std::int64_t room, void* to);
  /// Computes the outputs [begin, end); begin is a multiple of kBitmapRows.
  void (*forward)(const BitmapJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the inputs' gradients [begin, end); begin is a multiple of kBitmapCols. Null: there is no dX.
  void (*dx)(const BitmapJob& job, std::int64_t begin, std::int64_t end, const BitmapRoom& room);
  /// to [cells][to_stride] = the cells of up to kLineCells rows of x [tokens][x_stride], with zeros behind
  /// them; `cells` is a multiple of kLineCells. Null: forward has columns in the lanes however many tokens.
  void (*by_tokens)(const float* x, std::int64_t x_stride, std::int64_t tokens, std::int64_t cells, float* to,
                    std::int64_t to_stride);
};

std::size_t bitmap_workspace(const BitmapOps& ops, const BitmapView& w, Direction direction, DType dtype,
                             std::int64_t m, std::int64_t threads);
void run_bitmap(const BitmapOps& ops, const MatmulArgs& args, const BitmapView& w, const Executor& executor);

/// fp32, f16 and bf16, forward and dX; both of bf16 by VDPBF16PS; int8 forward by VPDPBUSD.
extern const BitmapOps kBitmapAvx2, kBitmapAvx512, kBitmapPairs, kBitmapQuads;

}  // namespace sparseloom::kernels::cpu
