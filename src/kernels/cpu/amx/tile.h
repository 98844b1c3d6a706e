// bf16 products on AMX tiles, in two halves as the panel kernels: drivers in plain C++ (run.cpp, run_dw.cpp)
// and what the instruction set gives them (product.cpp).
//
// TDPBF16PS multiplies A [16 x 32 bf16] with B [16 pairs x 16 columns]: A as matrices lie in memory, B with
// two rows interleaved.
//   forward  A = stored blocks as they are, B = X packed into panels of token columns; sums are Y^T: no copy
//   of W is ever made dx       the same on blocks transposed into the workspace, once per call, in the order
//   of the column lists dw       A = dY^T and B = X, both packed into whole tiles; sums are the blocks
//   themselves
// int8 is TDPBSSD, quads of 64 values in a row in place of pairs of 32: forward, the same walk on half the
// bytes. The other way round (A = X as it lies, B = W packed) needs a pack of W per version of its values,
// for which the contract has no place; made in every call it would cost some 6 % at density .5, where packing
// X costs 2 %.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/cpu/panel.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kTileSide = 16;     // rows of a tile, and its columns of 4 bytes
inline constexpr int kTileDepth = 32;    // bf16 values in a row; int8: 64
inline constexpr int kTileOutputs = 32;  // written together: a cache line of bf16
inline constexpr std::int64_t kTileCells = kTileSide * kTileSide;
inline constexpr double kTileTaskProducts = 10 * kTaskProducts;  // as kTaskProducts, at ten times the rate

/// Of a thread's tiles 0 .. 3 sum, 4 .. 3 + a_count hold A and the others B. side: rows of A and sums; depth:
/// bf16 values in a row of A; columns: of B and sums.
struct TileShape {
  int side, depth, columns, a_count;
};

/// forward, dx: up to 32 outputs x up to 4 vectors of 16 tokens, through all blocks of their list.
struct TileStrip {
  const float* panel;    // [depth pair][vector][16] cells
  std::int64_t output;   // first output
  std::int64_t outputs;  // up to 32, whole block rows (or 32 of one); the last may reach beyond the matrix
  std::int64_t token;    // first token of the panel
  std::int64_t tokens;   // valid ones
  bool fetch;            // the first panel to meet these weights
  DeferredLines* leaving = nullptr;  // as Strip's
};
using TileStripFunction = void (*)(const PanelJob& job, const TileStrip& strip);

/// dw: up to 32 rows of a stored block row x up to 4 pieces of 16 (or 8) columns, over `tiles` tiles of 32
/// tokens.
struct TileOuter {
  static constexpr int kMaxPieces = 4;
  const float* dy;        // tiles of the first 16 rows
  std::int64_t dy_group;  // cells from there to those of the next 16
  const float* pieces[kMaxPieces];
  std::int64_t tiles;
  std::int64_t block_cols, valid_rows,
      valid_columns[kMaxPieces];  // valid ones may be negative or more than
                                  // there are
  float* sums[kMaxPieces];        // fp32 sums between chunks of tokens: null when
                                  // there is one chunk
  void* out[kMaxPieces];          // bf16, or fp32 that is added to
  bool first, last;               // chunk
  bool accumulate;  // added once, when the sums are whole: not a tile's first value, which every 32 tokens
                    // would round
};
using TileOuterFunction = void (*)(const TileOuter& outer);

/// A row-major matrix to pack into tiles [column / 16][tile][16][16 cells], zero beyond its edges. Turned:
/// rows are columns of the matrix and cells pairs of its rows (A of dw); else rows are pairs of its rows (B).
struct TilePack {
  const std::uint16_t* in;
  std::int64_t in_stride, rows, columns;
  std::int64_t tiles, groups;  // groups: of 16 columns in `out`
  bool turned;
  std::int64_t begin, end;  // pairs of groups
  float* out;
};

struct TileOps {
  int per_cell;                           // elements in the 4 bytes of a cell
  void (*begin)(const TileShape& shape);  // configures the calling thread's
                                          // tiles: before any strip or outer
  void (*end)();
  void (*pack_panel)(const PanelJob& job, const Pack& pack);
  TileStripFunction (*strip)(int outputs,
                             int vectors);  // outputs: 8, 16 or 32; vectors: up
                                            // to 4, with 32 outputs up to 2
  TileOuterFunction (*outer)(int outputs,
                             int pieces);  // the same limits; this and the next are null for int8
  void (*pack)(const TilePack& pack);
  std::int64_t (*spin)(std::int64_t rounds);  // 4 products of whole tiles of spin_cells(), in
                                              // registers; returns the flops done
};

extern const TileOps kAmxTile, kAmxInt8Tile;

/// Forward and dx; dw. All operands are bf16, or int8 by kAmxInt8Tile, forward only.
void run_tile(const TileOps& ops, const MatmulArgs& args, const Executor& executor);
void run_tile_dw(const TileOps& ops, const MatmulArgs& args, const Executor& executor);
std::size_t tile_workspace(const Problem& problem);
std::size_t tile_dw_workspace(const Problem& problem);

/// `peak`: flops per second of one core by whole tiles in registers.
double predict_tile_us(const Problem& problem, double peak);

}  // namespace sparseloom::kernels::cpu
