// The grouped kernels of n:m:g weights: operands are transposed into tiles of tokens, so that a vector holds
// one feature of many tokens. An input of a pattern meets the g outputs that use it: forward loads it once
// for all of them, dX sums it over them in registers, dW multiplies it with each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/check.h"
#include "kernels/nmg_linear/cpu/outputs.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/executor.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/nmg.h"

namespace sparseloom::kernels::cpu {

/// Vectors of tokens of the widest tile, and of dW's, which adds up in registers.
inline constexpr std::int64_t kMostVectors = 4, kMostVectorsOfDw = 8;

/// Tokens that are transposed at once: 32 MB of fp32 for 8192 features.
inline constexpr std::int64_t kBlockTokens = 1024;

/// A tile of tokens: `vectors` vectors wide, or none for a single token, from token `first` on; features
/// transposed at `x` [features, cells of the tile], where a cell is a token in fp32, or for gradients of bf16
/// by VDPBF16PS two tokens.
struct TokenTile {
  std::int64_t first, vectors;
  float* x;
};

/// A matrix [tokens, features] of the caller, of which a tile gets zeros from `features` on.
struct TokenMatrix {
  const void* from;
  std::int64_t stride, tokens, features;
};

inline constexpr std::int64_t tokens_of(std::int64_t lanes, std::int64_t vectors) noexcept {
  return vectors == 0 ? 1 : vectors * lanes;
}

/// Elements of the sums of some features [features, tokens of the tile], with one more vector, in whole
/// lines.
inline std::int64_t sums_of(std::int64_t lanes, std::int64_t vectors, std::int64_t features) noexcept {
  return core::round_up(features * tokens_of(lanes, vectors) + lanes, kLineCells);
}

/// Strips whose products are added to an output one after another: some 512 products, since longer chains of
/// additions lose precision.
inline std::int64_t strips_at_once(const NmgView& w) noexcept { return std::max<std::int64_t>(1, 512 / w.n); }

/// The same of dX: chunks, each of which adds up to 512 outputs to a sum.
inline constexpr std::int64_t kChunksAtOnce = 512, kOutputsAtOnce = 512;

/// Strips of a work item of dX and dW: columns of x or dX that stay in L2 for all chunks. Few tokens need
/// less room, and then read longer runs of W.
inline std::int64_t strips_of_item(const NmgView& w, Direction direction, std::int64_t vectors) noexcept {
  const std::int64_t columns = direction == Direction::dw || vectors == 1 ? 256 : vectors == 0 ? 512 : 128;
  return std::max<std::int64_t>(1, columns / w.m);
}

struct GroupedJob {
  const MatmulArgs& args;
  NmgView w;
};

/// Tiles of a work item, at most: they share what is read of W, which need not fit into a cache.
inline constexpr std::int64_t kTilesOfItem = 4;

/// The buffers of a work item of forward and dX: sums_of() elements (of dX for each tile), as many after them
/// where they are set aside, the sums transposed back, and the values of a strip in fp32.
struct Scratch {
  float *sums, *whole, *rows, *values;
  std::int64_t of_tile;  // sums_of()
};

/// A kernel of one instruction set and dtype; a null direction is not supported.
struct GroupedOps {
  Runs* runs;
  std::int64_t lanes;
  std::int64_t tokens_of_cell;  // of pack_cells: 1, or 2 of bf16
  /// Transposes the features [begin, end) of a tile.
  void (*pack)(const TokenMatrix& matrix, const TokenTile& tile, std::int64_t begin, std::int64_t end);
  /// The same in the cells of dW and dx_pairs.
  void (*pack_cells)(const TokenMatrix& matrix, const TokenTile& tile, std::int64_t begin, std::int64_t end);
  /// Multiplies one chunk with a tile of x.
  void (*chunk)(const GroupedJob& job, const TokenTile& tile, std::int64_t chunk, const Scratch& scratch);
  /// dX of the strips of up to kTilesOfItem tiles of dY, each with sums of its own.
  void (*dx)(const GroupedJob& job, std::span<const TokenTile> tiles, Range strips, const Scratch& scratch);
  /// The same of tiles of cells, for one or two positions a pattern and an even g; or null.
  void (*dx_pairs)(const GroupedJob& job, std::span<const TokenTile> tiles, Range strips,
                   const Scratch& scratch);
  /// Adds a tile's dW of a chunk and some strips to `sums` [slots], or writes it. dy: the chunk's rows of
  /// the tile.
  void (*dw)(const GroupedJob& job, const TokenTile& tile, const float* dy, std::int64_t chunk, Range strips,
             float* sums, bool adds);
  /// The sums of slots [begin, end) in the dtype of dW.
  void (*write_dw)(const float* sums, std::int64_t begin, std::int64_t end, void* out);
  /// Forward of some tiles and chunks output by output (outputs.h), of rows of pairs where `pairs_of_inputs`
  /// and the pattern allow it; or null.
  void (*outputs)(const OutputJob& job, std::span<const TokenTile> tiles, Range chunks,
                  const OutputScratch& scratch) = nullptr;
  bool pairs_of_inputs = false;
};

/// The kernels, or null.
const GroupedOps* grouped_avx2(DType dtype) noexcept;
const GroupedOps* grouped_avx512(DType dtype) noexcept;
const GroupedOps* grouped_avx512bf16(DType dtype) noexcept;

/// Whether a product takes operands in pack_cells' cells.
bool takes_cells(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w);
/// Vectors of cells per full tile: as many as m tokens fill and as fit in L1 with the rows of a chunk; 0 for
/// a single token.
std::int64_t grouped_vectors(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w);
std::size_t grouped_workspace(const GroupedOps& ops, Direction direction, DType dtype, std::int64_t m,
                              const NmgView& w, std::int64_t threads);
void run_grouped(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
