// The interface between the two halves of the panel kernels: the driver in plain C++ (panel.cpp and
// panel_dw.cpp: the loops, the division into tasks, the workspace) and the functions of each instruction set
// (PanelOps). A panel is a micro-panel as in BLIS: packed input of up to 3 vectors of tokens. A cell is the 4
// bytes of a lane: an fp32, a pair of bf16, or four int8.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/cpu/deferred_lines.h"
#include "kernels/bsr_linear/cpu/spin_cells.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/claims.h"
#include "sparseloom/executor.h"

namespace sparseloom {
struct TilesView;
}

namespace sparseloom::kernels::cpu {

/// Forward and dx as one product over the stored blocks of each output block's list:
/// out[t, o] = sum_k in[t, k] w(o, k).
///
///             depth (bn or bm per block)
///   outputs  +---+---+---+---+   A panel has up to 3 vectors of tokens side by side, depth-major:
///   8 at a   |   | A |   | B |   [step][vector][lane] cells. A strip is 8 outputs x all their blocks x one
///   time     +---+---+---+---+   panel; its 8 x 3 vector accumulators never leave the registers.
///
/// "Output block" means a block row in forward and a block column in dx; depth is the reduction.
struct PanelJob {
  DType dtype = DType::f32;
  Direction direction = Direction::forward;
  Activation activation = Activation::none;
  const void* in = nullptr;
  std::int64_t in_stride = 0, tokens = 0, depth = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0, outputs = 0;
  const void* bias = nullptr;
  const void* residual = nullptr;  // shaped like out, or null
  std::int64_t residual_stride = 0;
  std::int64_t output_block = 0, depth_block = 0;  // block sides along outputs and depth
  std::int64_t output_blocks = 0, depth_blocks = 0;
  /// The bounds of each output block's list: crow or ccol, or the cuts of a K tile.
  const std::int32_t *begin = nullptr, *end = nullptr;
  const std::int32_t* depth_index = nullptr;  // col or row
  const std::int32_t* slot = nullptr;         // null: the blocks lie in list order
  /// The stored elements; for dx by dot products of bf16 pairs, those of transposed blocks in list order.
  const void* values = nullptr;
  std::int64_t block_cols = 0, block_elements = 0;  // elements per row of a block in `values`; per block
  // For 8-bit products, see MatmulArgs. For others out_dtype is dtype.
  DType out_dtype = DType::f32;
  const float *token_scale = nullptr, *output_scale = nullptr;
  bool token_scale_each = false, output_scale_each = false;
  /// PanelOps::sum_rows of each output, or null: then each strip computes its own.
  const std::int32_t* row_sums = nullptr;
  /// tiles_linear: W, of whose table `slot` has entries. Its blocks are of 64 x 64, wherever in `values`.
  const TilesView* tiles = nullptr;
};

/// The work of one StripFunction call: `count` strips side by side on one panel, in one K tile.
struct Strip {
  const float* panel;   // packed input of this panel
  std::int64_t output;  // first of the strip's 8 outputs
  std::int64_t token;   // first token of the panel
  std::int64_t tokens;  // valid tokens of the panel
  /// Partial sums passed from one K tile to the next, [8 * count][tokens of the panel]. Null: one K tile.
  float* sums = nullptr;
  bool begins = true, ends = true;   // whether this is the first K tile, the last K tile
  bool leads = false;                // the first panel to read these weights prefetches the next strip's
  DeferredLines* leaving = nullptr;  // the task's deferred stores past the caches; null: ordinary stores
  int count = 1;                     // adjacent strips, up to kMostStrips, whose outputs are written together
};

/// In 16 bits, a token's outputs of four strips are a cache line.
inline constexpr int kMostStrips = 4;

/// One input panel to pack: depth steps [begin, end) of `vectors` vectors of tokens from `token` on, with
/// zeros past the edges of the matrix.
struct Pack {
  std::int64_t token;
  int vectors;
  std::int64_t begin, end;  // steps, begin a multiple of the lanes
  float* panel;
};

/// One register tile of dw: 8 outputs (rows of dY^T) x up to 3 vectors of stored columns, over all tokens of
/// the chunk. A piece is min(lanes, bn) columns of one stored block: a vector is one piece, or two if a block
/// is half a vector wide.
struct Outer {
  const float* dy;                       // [steps][8] cells
  const float* pieces[kMaxVectors * 2];  // each [steps][piece] cells
  std::int64_t steps;
  // The prefetches of this tile while it multiplies: its share of the next columns. Where the share begins in
  // each piece, and the number of cache lines per kAskSteps steps.
  const float* next[kMaxVectors * 2];
  int next_lines;
};

/// dw of few tokens: a range of one block row, all in one chunk of tokens. A cell is 8 rows of a stored block
/// here; cells are counted over all stored blocks.
struct FewOuter {
  const float* dy;  // the block row's, [rows / 8][steps][8] cells
  const float* x;   // all columns, [column / piece][steps][piece] cells, piece as in Outer
  std::int64_t steps;
  BlockShape block;
  const std::int32_t* col;
  std::int64_t begin, end;  // cells
  const float* partial;     // added to the sums, or null
  DType result;
  void* out;  // all stored blocks
};

/// A row-major matrix to pack into columns [column / piece][step][piece]. A step is one token, or a pair of
/// tokens for dot products of bf16 pairs.
struct ColumnPack {
  const void* in;
  std::int64_t in_stride, columns, tokens;
  int piece;
  std::int64_t steps;
  std::int64_t begin, end;  // pieces
  float* out;
};

/// Rows of a panel at arbitrary addresses, such as the pixels under a tap: `depth` elements of each of
/// `vectors` vectors of tokens, as `steps` steps from the panel's address on, with zeros past the depth;
/// absent tokens are rows of kMaxBlock zeros.
struct RowPack {
  const void* const* rows;
  const void* const* next;  // the rows that the next call packs, to prefetch them; or null
  int vectors;
  std::int64_t depth, steps;
  float* panel;
};

/// Columns [begin, end) of rows at arbitrary addresses, which end at `columns`: `depth_step` rows per step.
/// The pieces of the result are piece_cells apart.
struct ColumnRowPack {
  const void* const* rows;
  std::int64_t steps, columns, begin, end;
  int piece;
  std::int64_t piece_cells;
  float* out;
};

using StripFunction = void (*)(const PanelJob& job, const Strip& strip);
using OuterFunction = void (*)(const Outer& outer, float* tile);  // tile [8][3 * lanes]

/// out[i] [bn][bm] = values[slot[i]] [bm][bn] transposed, for i in [begin, end). With it dx runs like
/// forward, on blocks in the order of the block columns' lists.
using TransposeFunction = void (*)(const std::uint16_t* values, const std::int32_t* slot, BlockShape block,
                                   std::int64_t begin, std::int64_t end, std::uint16_t* out);

struct PanelOps {
  Runs* runs;                   // the kernel's count of its runs
  int lanes;                    // tokens, or columns, per vector
  int depth_step;               // k values per cell: 1, 2 for bf16 dot products, 4 for int8
  TransposeFunction transpose;  // null: dx reads the stored values directly
  void (*pack)(const PanelJob& job, const Pack& pack);
  StripFunction (*strip)(DType dtype, Direction direction, int vectors);
  void (*pack_columns)(DType dtype, const ColumnPack& pack);
  OuterFunction (*outer)(int vectors, bool half_pieces);
  std::int64_t (*spin)(
      std::int64_t rounds);  // multiplies register tiles of spin_cells() without loads; returns the flops
  /// Like pack and pack_columns, for rows at arbitrary addresses. Null for int8.
  void (*pack_rows)(DType dtype, const RowPack& pack);
  void (*pack_column_rows)(DType dtype, const ColumnRowPack& pack);
  /// dw of few tokens, or null.
  void (*outer_few)(const FewOuter& job) = nullptr;
  /// sums[o] = 128 times the sum of stored row output + o, for 8 rows, modulo 2^32. Null if the product does
  /// not need it.
  void (*sum_rows)(const PanelJob& job, std::int64_t output, std::int32_t* sums) = nullptr;
};

/// Whether a call's outputs exceed the L2 caches of its tasks. The AMX kernels then store them past the
/// caches, see deferred_lines.h: there the product alone took 1.36 times as long without, a chain of two as
/// long.
bool outgrows_l2(const PanelJob& job, std::int64_t tasks);

/// A call whose inputs, weights and outputs take no more leaves its outputs in the caches, since what follows
/// reads them there. Half the L3 of a core complex of a Zen 5: chains of two products took .66 to .97 of the
/// time up to here, 1.02 to 1.21 beyond. The log has the figures.
inline constexpr std::int64_t kKeptBytes = std::int64_t{16} << 20;

/// Whether the panel kernels store a call's outputs past the caches.
bool passes_caches(const MatmulArgs& args, const PanelJob& job, std::int64_t tasks);

/// The destination of `outputs` outputs of `tokens` tokens, from (token, output) on; see
/// DeferredLines::rows_of.
inline DeferredLines::Rows rows_of(const PanelJob& job, DeferredLines* leaving, std::int64_t token,
                                   std::int64_t tokens, std::int64_t output, std::int64_t outputs) {
  const auto size = static_cast<std::int64_t>(size_of(job.out_dtype));
  return DeferredLines::rows_of(
      leaving,
      {static_cast<std::byte*>(job.out) + (token * job.out_stride + output) * size, job.out_stride * size},
      outputs * size, tokens);
}

/// dx on transposed blocks, a phase of the call. It makes the job read `out` instead of the values; both have
/// the same number of elements.
class TransposedValues {
 public:
  TransposedValues(TransposeFunction transpose, const MatmulArgs& args, std::int64_t tasks,
                   std::uint16_t* out, PanelJob& job);
  void work();
  void wait() const { phase_.wait(); }

 private:
  TransposeFunction transpose_;
  const MatmulArgs& args_;
  std::int64_t items_;
  std::uint16_t* out_;
  Phase phase_;
};

/// The job of a forward or dx call.
PanelJob panel_job(const MatmulArgs& args);

/// run_panel does forward and dx, run_panel_dw does dw.
void run_panel(const PanelOps& ops, const MatmulArgs& args, const Executor& executor);
void run_panel_dw(const PanelOps& ops, const MatmulArgs& args, const Executor& executor);
/// Whether outer_few computes a dw of m tokens, if they fit in one chunk.
bool few_outer_tokens(int lanes, BlockShape block, std::int64_t m);
std::size_t panel_dw_workspace(int depth_step, const Problem& problem);

}  // namespace sparseloom::kernels::cpu
