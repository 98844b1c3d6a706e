// dW on AMX tiles, computed at the stored blocks only. Both operands are packed into whole tiles; then each
// set of sums (up to 32 rows, up to 4 pieces of 16 columns) of a block row runs over all tokens of a chunk.
#include <algorithm>
#include <cstring>
#include <new>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

// Bytes of both packed operands of one chunk of tokens, as in the panel kernels; bytes of X and of dY that
// should stay in L2 from block row to block row.
constexpr std::int64_t kOuterBytes = 32 << 20, kColumnBytes = 1 << 20, kRowBytes = 512 << 10;
constexpr std::int64_t kMinChunk = 64;

/// The sizes on which workspace_bytes() and the run must agree.
struct OuterShape {
  std::int64_t row_groups, column_groups;  // groups of 16 features
  std::int64_t chunk, chunks;              // tokens of a chunk, and their number
  bool partial;                            // there are several chunks: the workspace holds fp32 sums

  OuterShape(std::int64_t m, std::int64_t rows, std::int64_t cols, BlockShape block)
      : row_groups(ceil_div(round_up(rows, block.rows), kTileSide)),
        column_groups(ceil_div(round_up(cols, block.cols), kTileSide)) {
    const std::int64_t token_bytes = std::max<std::int64_t>(1, (row_groups + column_groups) * kTileSide * 2);
    const std::int64_t fit = std::max(kMinChunk, kOuterBytes / token_bytes / kMinChunk * kMinChunk);
    chunk = std::min(round_up(m, kTileDepth), fit);
    chunks = m == 0 ? 0 : ceil_div(m, chunk);
    partial = m > chunk;
  }
  std::int64_t tiles() const { return chunk / kTileDepth; }
  std::int64_t x_bytes() const { return column_groups * tiles() * kTileCells * 4; }
  std::int64_t dy_bytes() const { return row_groups * tiles() * kTileCells * 4; }
  // Stage [chunks], after the operands.
  std::int64_t stage_bytes() const {
    return round_up(chunks * static_cast<std::int64_t>(sizeof(Stage)), kAlign);
  }
};

class OuterRun {
 public:
  OuterRun(const TileOps& ops, const MatmulArgs& args, const Executor& executor)
      : ops_(ops),
        args_(args),
        executor_(executor),
        w_(args.index),
        shape_(args.m, w_.rows, w_.cols, w_.block),
        outputs_(std::min(w_.block.rows, 2 * kTileSide)),
        piece_(std::min(w_.block.cols, kTileSide)),
        wide_(outputs_ > kTileSide ? 2 : TileOuter::kMaxPieces),
        pieces_per_block_(w_.block.cols / piece_),
        subs_(w_.block.rows / outputs_) {
    x_ = reinterpret_cast<float*>(args.workspace);
    dy_ = reinterpret_cast<float*>(args.workspace + shape_.x_bytes());
    std::byte* const behind = args.workspace + shape_.x_bytes() + shape_.dy_bytes();
    stages_ = reinterpret_cast<Stage*>(behind);
    if (shape_.partial) sums_ = reinterpret_cast<float*>(behind + shape_.stage_bytes());
    const double m = static_cast<double>(args.m);
    const double tasks = m * static_cast<double>(w_.blocks * w_.block_elements()) / kTileTaskProducts +
                         m * static_cast<double>(w_.rows + w_.cols) / kTaskProducts;
    tasks_ = tasks_of(tasks, executor);
    for (int pieces = 1; pieces <= wide_; ++pieces) outer_[pieces] = ops.outer(outputs_, pieces);
  }

  void run() {
    ops_.runs->add();
    if (args_.m == 0 && !args_.accumulate)
      std::memset(args_.out, 0, static_cast<std::size_t>(w_.blocks * w_.block_elements()) * 2);
    for (std::int64_t i = 0; i < shape_.chunks; ++i)
      new (stages_ + i) Stage{Phase(parts()), Phase(groups_of(chunk_at(i)) * parts())};
    runtime::parallel_tasks(executor_, tasks_, [this](std::int64_t) {
      ops_.begin({std::min(outputs_, kTileSide), kTileDepth, piece_, outputs_ > kTileSide ? 2 : 1});
      for (std::int64_t i = 0; i < shape_.chunks; ++i) {
        const Chunk chunk = chunk_at(i);
        // The previous chunk's operands are read until its last product.
        if (i > 0) stages_[i - 1].products.wait();
        stages_[i].packing.work([&](std::int64_t item) { pack(chunk, item); });
        stages_[i].packing.wait();
        stages_[i].products.work([&](std::int64_t item) { multiply(chunk, item); });
      }
      ops_.end();
    });
  }

 private:
  struct Chunk {
    std::int64_t token, tokens, tiles;
    std::int64_t group_columns;
  };
  Chunk chunk_at(std::int64_t i) const {
    Chunk chunk;
    chunk.token = i * shape_.chunk, chunk.tokens = std::min(shape_.chunk, args_.m - chunk.token);
    chunk.tiles = ceil_div(chunk.tokens, kTileDepth), chunk.group_columns = columns_in_l2(chunk.tiles);
    return chunk;
  }
  std::int64_t groups_of(const Chunk& chunk) const { return ceil_div(w_.block_cols(), chunk.group_columns); }
  std::int64_t parts() const { return tasks_ == 1 ? 1 : kPartsOfTask * tasks_; }

  void pack(const Chunk& chunk, std::int64_t item) const {
    const auto one = [&](const void* base, std::int64_t stride, std::int64_t columns, std::int64_t groups,
                         bool transposed, float* out) {
      const Range range = share(ceil_div(groups, 2), item, parts());
      ops_.pack({static_cast<const std::uint16_t*>(base) + chunk.token * stride, stride, chunk.tokens,
                 columns, chunk.tiles, groups, transposed, range.begin, range.end, out});
    };
    one(args_.b, args_.b_stride, w_.cols, shape_.column_groups, false, x_);
    one(args_.a, args_.a_stride, w_.rows, shape_.row_groups, true, dy_);
  }

  // The number of block columns in a group, which a task finishes for all its rows before the next group: as
  // many as let X stay in L2; or all of them, if stored blocks are so few that rereading dY for each group
  // costs more than reading X for each block.
  std::int64_t columns_in_l2(std::int64_t tiles) const {
    const double feature =
        static_cast<double>(tiles) * kTileDepth * 2;  // bytes of a feature of all tokens of the chunk
    const std::int64_t all = w_.block_cols();
    const std::int64_t fit =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kColumnBytes / feature) / w_.block.cols);
    if (fit >= all) return all;
    const double rows = feature * static_cast<double>(w_.rows) / static_cast<double>(tasks_);
    const double columns = feature * static_cast<double>(w_.cols);
    const double grouped = rows * (rows <= kRowBytes ? 1 : static_cast<double>(ceil_div(all, fit))) + columns;
    const double blockwise =
        rows + feature * static_cast<double>(w_.blocks * w_.block.cols) / static_cast<double>(tasks_);
    return grouped <= blockwise ? fit : all;
  }

  // Work is counted in cells (piece, sub), where a sub is up to 32 rows of a block row. The order is by block
  // rows, then by sets of pieces, then by subs, which read the same pieces. A unit (a sub of a set) belongs
  // to the part of its first cell. A work item is one part of one group of block columns; all parts of a
  // group come before the next group.
  void multiply(const Chunk& chunk, std::int64_t item) const {
    const std::int64_t cells = pieces_per_block_ * subs_, column = item / parts() * chunk.group_columns;
    const Range range = share(w_.blocks * cells, item % parts(), parts());
    for (std::int64_t r = 0; r < w_.block_rows(); ++r) {
      if (w_.crow[r + 1] * cells <= range.begin) continue;
      if (w_.crow[r] * cells >= range.end) break;
      const std::int32_t *begin = w_.col + w_.crow[r], *end = w_.col + w_.crow[r + 1];
      const auto place = [&](std::int64_t c) { return std::lower_bound(begin, end, c) - w_.col; };
      row(chunk, r, place(column), place(column + chunk.group_columns), range);
    }
  }

  // Multiplies the blocks [first, last) of block row r that belong to `range`.
  void row(const Chunk& chunk, std::int64_t r, std::int64_t first, std::int64_t last, Range range) const {
    const std::int64_t pieces = (last - first) * pieces_per_block_;
    for (std::int64_t piece = 0; piece < pieces; piece += wide_) {
      const std::int64_t count = std::min<std::int64_t>(wide_, pieces - piece);
      for (std::int64_t sub = 0; sub < subs_; ++sub) {
        const std::int64_t cell = (first * pieces_per_block_ + piece) * subs_ + sub * count;
        if (cell >= range.begin && cell < range.end)
          unit(chunk, r, sub, first * pieces_per_block_ + piece, count);
      }
    }
  }

  // `piece` counts pieces of all stored blocks.
  void unit(const Chunk& chunk, std::int64_t r, std::int64_t sub, std::int64_t piece,
            std::int64_t count) const {
    const std::int64_t row = r * w_.block.rows + sub * outputs_, group = chunk.tiles * kTileCells;
    TileOuter o;
    o.dy = dy_ + row / kTileSide * group + row % kTileSide * kTileSide;
    o.dy_group = group;
    o.tiles = chunk.tiles;
    o.block_cols = w_.block.cols;
    o.valid_rows = w_.rows - row;
    o.first = chunk.token == 0, o.last = chunk.token + chunk.tokens == args_.m;
    o.accumulate = args_.accumulate;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t block = (piece + i) / pieces_per_block_,
                         inside = (piece + i) % pieces_per_block_ * piece_;
      const std::int64_t column = std::int64_t{w_.col[block]} * w_.block.cols + inside;
      const std::int64_t at = block * w_.block_elements() + sub * outputs_ * w_.block.cols + inside;
      o.pieces[i] = x_ + column / kTileSide * group + column % kTileSide;
      o.valid_columns[i] = w_.cols - column;
      o.sums[i] = sums_ ? sums_ + at : nullptr;
      o.out[i] = static_cast<std::byte*>(args_.out) + at * (args_.accumulate ? 4 : 2);
    }
    outer_[count](o);
  }

  const TileOps& ops_;
  const MatmulArgs& args_;
  const Executor& executor_;
  const IndexView& w_;
  OuterShape shape_;
  int outputs_, piece_, wide_;
  std::int64_t pieces_per_block_, subs_, tasks_ = 1;
  Stage* stages_ = nullptr;  // stages of the chunks
  float *x_ = nullptr, *dy_ = nullptr, *sums_ = nullptr;
  TileOuterFunction outer_[TileOuter::kMaxPieces + 1] = {};
};

}  // namespace

void run_tile_dw(const TileOps& ops, const MatmulArgs& args, const Executor& executor) {
  if (args.index.blocks > 0) OuterRun(ops, args, executor).run();
}

std::size_t tile_dw_workspace(const Problem& problem) {
  const OuterShape shape(problem.m, problem.rows, problem.cols, problem.block);
  std::int64_t bytes = shape.x_bytes() + shape.dy_bytes() + shape.stage_bytes();
  if (shape.partial) bytes += problem.blocks * problem.block.rows * problem.block.cols * 4;
  return static_cast<std::size_t>(bytes);
}

}  // namespace sparseloom::kernels::cpu
