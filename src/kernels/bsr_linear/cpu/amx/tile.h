// The kernels on AMX tiles, in two halves like the panel kernels: the drivers in plain C++ (run.cpp,
// run_dw.cpp) and the functions of the instruction set (TileOps: product.cpp, product_int8.cpp).
//
// TDPBF16PS multiplies A [16 x 32 bf16] by B [16 pairs x 16 columns]. A is row-major, and B has two rows
// interleaved. Forward and dx are swap-AB: weights are on M and tokens on N.
//
//   forward  A = the stored blocks, read in place; B = X packed into micro-panels of tokens. The sums are
//            Y^T, and no copy of W is ever made.
//   dx       The same on blocks transposed into the workspace, once per call, in the order of the block
//            columns' lists.
//   dw       A = dY^T and B = X, both packed into whole tiles. The sums are the blocks themselves.
//
// int8 uses TDPBSSD, with 64 values per row as quads instead of 32 as pairs; it does forward only, in the
// same way on half the bytes. Without swap-AB (A = X in place, B = W packed) W would have to be packed for
// each version of its values, which the interface cannot cache. Packing in every call would cost more than
// packing X.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/cpu/ops.h"  // whose panels and transposed blocks AMX multiplies
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kTileSide = 16;     // rows of a tile, and its columns of 4 bytes
inline constexpr int kTileDepth = 32;    // bf16 values in a row; int8: 64
inline constexpr int kTileOutputs = 32;  // outputs written together: a cache line of bf16
inline constexpr std::int64_t kTileCells = kTileSide * kTileSide;
inline constexpr double kTileTaskProducts = 10 * kTaskProducts;  // as kTaskProducts, at ten times the rate

/// The configuration of a thread's tiles: 0 .. 3 hold sums, 4 .. 3 + a_count hold A, and the others B. side:
/// rows of A and of the sums; depth: elements per row of A; columns: of B and of the sums.
struct TileShape {
  int side, depth, columns, a_count;
};

/// One strip of forward or dx: up to 32 outputs x up to 4 vectors of 16 tokens, through all blocks of their
/// lists.
struct TileStrip {
  const float* panel;    // [step][vector][16] cells
  std::int64_t output;   // first output
  std::int64_t outputs;  // up to 32, whole block rows (or 32 of one); the last may exceed the matrix
  std::int64_t token;    // first token of the panel
  std::int64_t tokens;   // valid tokens
  bool fetch;            // the first panel to read these weights
  DeferredLines* leaving = nullptr;  // as in Strip
};
using TileStripFunction = void (*)(const PanelJob& job, const TileStrip& strip);

/// One set of sums of dw: up to 32 rows of a stored block row x up to 4 pieces of 16 (or 8) columns, over
/// `tiles` tiles of 32 tokens.
struct TileOuter {
  static constexpr int kMaxPieces = 4;
  const float* dy;        // tiles of the first 16 rows
  std::int64_t dy_group;  // stride in cells to the tiles of the next 16 rows
  const float* pieces[kMaxPieces];
  std::int64_t tiles;
  // The valid rows and columns before the matrix's edge may be negative, or exceed the piece.
  std::int64_t block_cols, valid_rows, valid_columns[kMaxPieces];
  float* sums[kMaxPieces];  // fp32 sums passed between chunks of tokens; null if there is one chunk
  void* out[kMaxPieces];    // bf16, or fp32 that is added to
  bool first, last;         // whether this is the first chunk, the last chunk
  /// Adds to fp32 `out`, once, when the sums are complete. Starting the tiles with the old values would round
  /// these again every 32 tokens.
  bool accumulate;
};
using TileOuterFunction = void (*)(const TileOuter& outer);

/// A row-major matrix to pack into tiles [column / 16][tile][16][16 cells], zero beyond its edges. If
/// transposed, the tiles' rows are columns of the matrix and the cells are pairs of its rows (A of dw); else
/// the tiles' rows are pairs of its rows (B).
struct TilePack {
  const std::uint16_t* in;
  std::int64_t in_stride, rows, columns;
  std::int64_t tiles, groups;  // tiles of a group; groups of 16 columns in `out`
  bool transposed;
  std::int64_t begin, end;  // pairs of groups
  float* out;
};

struct TileOps {
  Runs* runs;    // the kernel's count of its runs
  int per_cell;  // elements in the 4 bytes of a cell
  /// Configures the calling thread's tiles. Call it before any strip or outer.
  void (*begin)(const TileShape& shape);
  void (*end)();
  void (*pack_panel)(const PanelJob& job, const Pack& pack);
  /// `outputs` is 8, 16 or 32; `vectors` is up to 4, and with 32 outputs up to 2.
  TileStripFunction (*strip)(int outputs, int vectors);
  /// The same limits hold for `outputs` and `pieces`. This and `pack` are null for int8.
  TileOuterFunction (*outer)(int outputs, int pieces);
  void (*pack)(const TilePack& pack);
  /// In each round multiplies 4 whole tiles of spin_cells() without loads; returns the flops done.
  std::int64_t (*spin)(std::int64_t rounds);
};

extern const TileOps kAmxTile, kAmxInt8Tile;

/// run_tile does forward and dx, run_tile_dw does dw. All operands are bf16, or int8 with kAmxInt8Tile, which
/// does forward only.
void run_tile(const TileOps& ops, const MatmulArgs& args, const Executor& executor);
void run_tile_dw(const TileOps& ops, const MatmulArgs& args, const Executor& executor);
std::size_t tile_workspace(const Problem& problem);
std::size_t tile_dw_workspace(const Problem& problem);

/// `peak`: flops per second that one core reaches with whole tiles in registers.
double predict_tile_us(const Problem& problem, double peak);

}  // namespace sparseloom::kernels::cpu
