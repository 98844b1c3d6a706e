// The panel kernels' two halves: the driver (panel.cpp: walk, shares, workspace; plain C++) and what each
// instruction set gives it.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/cpu/cell.h"
#include "kernels/cpu/deferred_lines.h"
#include "kernels/cpu/spin_cells.h"

namespace sparseloom::kernels::cpu {

/// forward and dx as one product over the stored blocks of an output block's list: out[t, o] = sum_k in[t, k]
/// w(o, k).
///
///             depth (bn or bm per block)              a panel: up to 3 vectors of tokens side by side,
///             depth-major:
///   outputs  +---+---+---+---+                        [step][vector][lane] cells
///   8 at a   |   | A |   | B |  one strip = 8 outputs x all its blocks x one panel,
///   time     +---+---+---+---+  its 8 x 3 vector accumulators never leave the registers
struct PanelJob {
  DType dtype = DType::f32;
  Direction direction = Direction::forward;
  Activation activation = Activation::none;
  const void* in = nullptr;
  std::int64_t in_stride = 0, tokens = 0, depth = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0, outputs = 0;
  const void* bias = nullptr;
  const void* residual = nullptr;  // as out, or null
  std::int64_t residual_stride = 0;
  std::int64_t output_block = 0, depth_block = 0;  // block sides along outputs and depth
  std::int64_t output_blocks = 0, depth_blocks = 0;
  const std::int32_t *begin = nullptr,
                     *end = nullptr;          // of each output block's list: crow or ccol, or a slab's cuts
  const std::int32_t* depth_index = nullptr;  // col or row
  const std::int32_t* slot = nullptr;         // null: blocks lie in list order
  const void* values = nullptr;  // elements; dx of 16-bit dots: of blocks transposed, in list order
  std::int64_t block_cols = 0, block_elements = 0;  // of a block's rows as values has them; all
  const std::int64_t* cost_prefix = nullptr;
  // Of 8-bit products, see MatmulArgs; out_dtype is dtype for all others.
  DType out_dtype = DType::f32;
  const float *token_scale = nullptr, *output_scale = nullptr;
  bool token_scale_each = false, output_scale_each = false;
  const std::int32_t* row_sums =
      nullptr;  // PanelOps::sum_rows of each output, or null: a strip makes its own
};

struct Strip {
  const float* panel;     // packed input of this panel
  std::int64_t output;    // first of its 8 outputs
  std::int64_t token;     // first token of the panel
  std::int64_t tokens;    // valid ones
  float* sums = nullptr;  // where slabs of depth leave them to the next, [8 * count][tokens of the panel];
                          // null: one slab
  bool begins = true, ends = true;  // its slab is the first, the last
  bool leads = false;  // the first to read these weights: it asks for those of the next strip (forward)
  DeferredLines* leaving = nullptr;  // the task's outputs past the caches, or null: they stay
  int count = 1;  // this one and those beside it, up to kMostStrips, whose outputs are written together
};

/// Whose outputs of a token are a cache line, if they are of 16 bits.
inline constexpr int kMostStrips = 4;

/// One input panel to pack: depth steps [begin, end) of `vectors` vectors of tokens from `token` on; zeros
/// beyond the edges.
struct Pack {
  std::int64_t token;
  int vectors;
  std::int64_t begin, end;  // steps, begin a multiple of the lanes
  float* panel;
};

/// dw: the register tile is 8 outputs (rows of dY^T) x up to 3 vectors of stored columns, over all tokens of
/// the chunk. A piece is min(lanes, bn) columns of one stored block: a vector is one piece, or two where a
/// block is half a vector wide.
struct Outer {
  const float* dy;                       // [steps][8] cells
  const float* pieces[kMaxVectors * 2];  // each [steps][piece] cells
  std::int64_t steps;
  // This tile's share of the columns that come next, to ask for while these are multiplied: where it begins
  // in each piece, and how many cache lines belong to every kAskSteps steps.
  const float* next[kMaxVectors * 2];
  int next_lines;
};

/// A row-major matrix to pack into columns [column / piece][step][piece]; a step is one token, or a pair for
/// bf16 dots.
struct ColumnPack {
  const void* in;
  std::int64_t in_stride, columns, tokens;
  int piece;
  std::int64_t steps;
  std::int64_t begin, end;  // pieces
  float* out;
};

using StripFunction = void (*)(const PanelJob& job, const Strip& strip);
using OuterFunction = void (*)(const Outer& outer, float* tile);  // tile [8][3 * lanes]

/// out[i] [bn][bm] = values[slot[i]] [bm][bn] transposed, for i of [begin, end): dx on blocks that are
/// forward's, in the order of the column lists.
using TransposeFunction = void (*)(const std::uint16_t* values, const std::int32_t* slot, BlockShape block,
                                   std::int64_t begin, std::int64_t end, std::uint16_t* out);

struct PanelOps {
  int lanes;                    // tokens, or columns, per vector
  int depth_step;               // k values per cell: 1, 2 for bf16 dots, 4 for int8 dots
  TransposeFunction transpose;  // null: dx reads the values as they lie
  void (*pack)(const PanelJob& job, const Pack& pack);
  StripFunction (*strip)(DType dtype, Direction direction, int vectors);
  void (*pack_columns)(DType dtype, const ColumnPack& pack);
  OuterFunction (*outer)(int vectors, bool half_pieces);
  std::int64_t (*spin)(
      std::int64_t rounds);  // register tiles of spin_cells(), no loads; returns the flops done
  /// sums[o] = 128 times the sum of stored row output + o, of 8 rows, modulo 2^32; null where the product
  /// needs none.
  void (*sum_rows)(const PanelJob& job, std::int64_t output, std::int32_t* sums) = nullptr;
};

extern const PanelOps kAvx2Panel, kAvx512Panel, kAvx512VnniPanel, kAvx512Bf16Panel;

/// Whether a call's outputs outgrow the L2 of its tasks: they leave past the caches, see deferred_lines.h.
bool outgrows_l2(const PanelJob& job, std::int64_t tasks);

/// Where `outputs` outputs of `tokens` tokens are written, from (token, output) on; see
/// DeferredLines::rows_of.
inline DeferredLines::Rows rows_of(const PanelJob& job, DeferredLines* leaving, std::int64_t token,
                                   std::int64_t tokens, std::int64_t output, std::int64_t outputs) {
  const auto size = static_cast<std::int64_t>(size_of(job.out_dtype));
  return DeferredLines::rows_of(
      leaving,
      {static_cast<std::byte*>(job.out) + (token * job.out_stride + output) * size, job.out_stride * size},
      outputs * size, tokens);
}

/// dx on transposed blocks: fills `out`, as many elements as the values, on up to `tasks` threads; the job
/// walks it from then on.
void transpose_values(TransposeFunction transpose, const MatmulArgs& args, const Executor& executor,
                      std::int64_t tasks, std::uint16_t* out, PanelJob& job);

/// The walk of a forward or dx call.
PanelJob panel_job(const MatmulArgs& args);

/// Forward and dx; dw.
void run_panel(const PanelOps& ops, const MatmulArgs& args, const Executor& executor);
void run_panel_dw(const PanelOps& ops, const MatmulArgs& args, const Executor& executor);
std::size_t panel_dw_workspace(int depth_step, const Problem& problem);

}  // namespace sparseloom::kernels::cpu
