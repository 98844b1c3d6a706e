// One dW of the panel kernels, computed at the stored blocks only. Both operands are packed into columns;
// then each register tile (8 outputs, up to 3 vectors of the block row's stored columns) is summed over all
// tokens of a chunk. Source provides X: a matrix (panel_dw.cpp), or the pixels under a convolution's taps
// (bsr_conv/cpu). write_run is AVX2 code, so this is for x86-64 only.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "kernels/shared/cpu/tile.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

// Bytes of both packed operands of one chunk of tokens, and the fewest tokens of a chunk.
inline constexpr std::int64_t kOuterBytes = 32 << 20;
inline constexpr std::int64_t kMinChunk = 64;

/// The dtype of the result. Accumulated results are fp32: every chunk of tokens adds to them in place, as in
/// fp32 products.
inline DType result_dtype(DType dtype, bool accumulate) { return accumulate ? DType::f32 : dtype; }

/// The sizes on which workspace_bytes() and the run must agree.
struct OuterShape {
  std::int64_t rows, cols;  // padded to whole blocks
  std::int64_t chunk;       // tokens of a chunk, an even number
  std::int64_t chunks;
  bool partial;  // 16-bit results of several chunks: the workspace holds fp32 sums

  OuterShape(std::int64_t m, std::int64_t rows_, std::int64_t cols_, BlockShape block, DType result,
             int depth_step, std::int64_t most_bytes)
      : rows(core::round_up(rows_, block.rows)), cols(core::round_up(cols_, block.cols)) {
    const std::int64_t token_bytes = std::max<std::int64_t>(1, (rows + cols) * kCellBytes / depth_step);
    const std::int64_t fit = std::max(kMinChunk, most_bytes / token_bytes / kMinChunk * kMinChunk);
    chunk = std::min(core::round_up(m, 2), fit);
    chunks = m == 0 ? 0 : core::ceil_div(m, chunk);
    partial = m > chunk && size_of(result) == 2;
  }
  std::int64_t steps(int depth_step) const { return core::ceil_div(chunk, depth_step); }
  std::int64_t x_bytes(int depth_step) const {
    return core::round_up(cols * steps(depth_step) * kCellBytes, kAlign);
  }
  std::int64_t dy_bytes(int depth_step) const {
    return core::round_up(rows * steps(depth_step) * kCellBytes, kAlign);
  }
  // Stage [chunks], after the operands.
  std::int64_t stage_bytes() const {
    return core::round_up(chunks * static_cast<std::int64_t>(sizeof(Stage)), kAlign);
  }
};

/// A share of X to pack: `tokens` tokens from `token` on, pieces [begin, end) as in ColumnPack.
struct ColumnShare {
  std::int64_t token, tokens, steps;
  int piece;
  std::int64_t begin, end;
  float* out;
};

inline std::size_t outer_workspace(int depth_step, const Problem& problem, std::int64_t most_bytes) {
  const DType result = result_dtype(problem.dtype, problem.accumulate);
  const OuterShape shape(problem.m, problem.rows, problem.cols, problem.block, result, depth_step,
                         most_bytes);
  std::int64_t bytes = shape.x_bytes(depth_step) + shape.dy_bytes(depth_step) + shape.stage_bytes();
  if (shape.partial) bytes += problem.blocks * problem.block.rows * problem.block.cols * kCellBytes;
  return static_cast<std::size_t>(bytes);
}

/// Source, which a run copies, provides X:
///   void pack(const PanelOps&, const MatmulArgs&, const ColumnShare&) const      packs a share of it
///   std::int64_t valid(const IndexView&, std::int64_t block_column) const        columns that exist from
///                                                the first of a block column on; the rest is padding
///   std::int64_t alike() const                   how many blocks of a row end with the same ragged columns
template <class Source>
class OuterRun {
 public:
  OuterRun(const PanelOps& ops, const MatmulArgs& args, const Source& source, const Executor& executor,
           std::int64_t most_bytes = kOuterBytes)
      : ops_(ops),
        source_(source),
        args_(args),
        executor_(executor),
        w_(args.index),
        result_(result_dtype(args.dtype, args.accumulate)),
        shape_(args.m, w_.rows, w_.cols, w_.block, result_, ops.depth_step, most_bytes),
        piece_(std::min(ops.lanes, w_.block.cols)),
        pieces_per_vector_(ops.lanes / piece_),
        pieces_per_block_(w_.block.cols / piece_),
        subs_(w_.block.rows / kGroup),
        pieces_total_(w_.blocks * pieces_per_block_) {
    x_ = reinterpret_cast<float*>(args.workspace);
    dy_ = reinterpret_cast<float*>(args.workspace + shape_.x_bytes(ops.depth_step));
    std::byte* const behind =
        args.workspace + shape_.x_bytes(ops.depth_step) + shape_.dy_bytes(ops.depth_step);
    stages_ = reinterpret_cast<Stage*>(behind);
    if (shape_.partial)
      partial_ = reinterpret_cast<float*>(behind + shape_.stage_bytes());
    else if (result_ == DType::f32)
      partial_ = static_cast<float*>(args.out);
    const double products =
        static_cast<double>(args.m) * static_cast<double>(w_.blocks * w_.block_elements()) +
        static_cast<double>(args.m) * static_cast<double>(w_.rows + w_.cols);
    tasks_ = tasks_of(products / kTaskProducts, executor);
    few_ = few_outer_tokens(ops.lanes, w_.block, args.m) && args.m <= shape_.chunk;
    for (int v = 1; v <= kMaxVectors; ++v) outer_[v] = ops.outer(v, pieces_per_vector_ == 2);
  }

  void run() {
    if (args_.m == 0 && !args_.accumulate)
      std::memset(args_.out, 0, static_cast<std::size_t>(w_.blocks * w_.block_elements()) * size_of(result_));
    for (std::int64_t i = 0; i < shape_.chunks; ++i) new (stages_ + i) Stage{Phase(parts()), Phase(parts())};
    runtime::parallel_tasks(executor_, tasks_, [this](std::int64_t) {
      for (std::int64_t i = 0; i < shape_.chunks; ++i) {
        const Chunk chunk = chunk_at(i);
        // The previous chunk's operands are read until its last product.
        if (i > 0) stages_[i - 1].products.wait();
        stages_[i].packing.work([&](std::int64_t part) { pack(chunk, part); });
        stages_[i].packing.wait();
        stages_[i].products.work(
            [&](std::int64_t part) { few_ ? multiply_few(chunk, part) : multiply(chunk, part); });
      }
    });
  }

 private:
  struct Chunk {
    std::int64_t token, tokens, steps;
  };
  Chunk chunk_at(std::int64_t i) const {
    const std::int64_t token = i * shape_.chunk, tokens = std::min(shape_.chunk, args_.m - token);
    return {token, tokens, core::ceil_div(tokens, ops_.depth_step)};
  }
  // Work items per phase.
  std::int64_t parts() const { return tasks_ == 1 ? 1 : kPartsOfTask * tasks_; }

  const void* at_token(const Chunk& chunk, const void* base, std::int64_t stride) const {
    return static_cast<const char*>(base) +
           chunk.token * stride * static_cast<std::int64_t>(size_of(args_.dtype));
  }

  void pack(const Chunk& chunk, std::int64_t part) const {
    const Range x = share(shape_.cols / piece_, part, parts());
    source_.pack(ops_, args_, {chunk.token, chunk.tokens, chunk.steps, piece_, x.begin, x.end, x_});
    const Range dy = share(shape_.rows / kGroup, part, parts());
    ops_.pack_columns(args_.dtype, {at_token(chunk, args_.a, args_.a_stride), args_.a_stride, w_.rows,
                                    chunk.tokens, kGroup, chunk.steps, dy.begin, dy.end, dy_});
  }

  // Work is counted in cells (piece, sub), where a sub is 8 rows of a block row. The order is by block rows,
  // then by triples of vectors, then by subs, so that a triple of packed columns comes from L2 for all subs
  // but the first. A unit (a sub of a triple) belongs to the work item of its first cell.
  void multiply(const Chunk& chunk, std::int64_t part) const {
    const std::int64_t total = w_.blocks * pieces_per_block_ * subs_;
    const Range range = share(total, part, parts());
    const std::int64_t wide = kMaxVectors * pieces_per_vector_;
    for (std::int64_t r = 0; r < w_.block_rows(); ++r) {
      const std::int64_t start = w_.crow[r] * pieces_per_block_ * subs_;
      const std::int64_t pieces = std::int64_t{w_.crow[r + 1] - w_.crow[r]} * pieces_per_block_;
      if (start + pieces * subs_ <= range.begin) continue;
      if (start >= range.end) break;
      for (std::int64_t first = 0; first < pieces; first += wide) {
        const std::int64_t count = std::min(wide, pieces - first);
        for (std::int64_t sub = 0; sub < subs_; ++sub) {
          const std::int64_t cell = start + first * subs_ + sub * count;
          if (cell >= range.begin && cell < range.end) unit(chunk, r, sub, first, count);
        }
      }
    }
  }

  // Like multiply(), with one function for all whole tiles of a block row. Cells are counted as in FewOuter.
  void multiply_few(const Chunk& chunk, std::int64_t part) const {
    const Range range = share(w_.blocks * subs_, part, parts());
    std::int64_t r = std::upper_bound(w_.crow, w_.crow + w_.block_rows(), range.begin / subs_) - w_.crow - 1;
    for (std::int64_t cell = range.begin; cell < range.end; ++r) {
      const std::int64_t end = std::min(range.end, w_.crow[r + 1] * subs_);
      if (cell >= end) continue;
      const bool row_is_whole = (r + 1) * w_.block.rows <= w_.rows,
                 last_is_whole = source_.valid(w_, w_.col[w_.crow[r + 1] - 1]) >= w_.block.cols;
      const std::int64_t whole = !row_is_whole   ? cell
                                 : last_is_whole ? end
                                                 : std::min(end, (w_.crow[r + 1] - source_.alike()) * subs_);
      if (cell < whole)
        ops_.outer_few({dy_ + r * subs_ * chunk.steps * kGroup, x_, chunk.steps, w_.block, w_.col, cell,
                        whole, args_.accumulate ? partial_ : nullptr, result_, args_.out});
      const std::int64_t wide = kMaxVectors * pieces_per_vector_;
      for (cell = std::max(cell, whole); cell < end; ++cell)
        for (std::int64_t piece = 0; piece < pieces_per_block_; piece += wide)
          unit(chunk, r, cell % subs_, (cell / subs_ - w_.crow[r]) * pieces_per_block_ + piece,
               std::min(wide, pieces_per_block_ - piece));
    }
  }

  // The packed columns of a piece, counted over all stored blocks.
  const float* columns(const Chunk& chunk, std::int64_t piece) const {
    const std::int64_t column =
        w_.col[piece / pieces_per_block_] * pieces_per_block_ + piece % pieces_per_block_;
    return x_ + column * chunk.steps * piece_;
  }

  void unit(const Chunk& chunk, std::int64_t r, std::int64_t sub, std::int64_t first,
            std::int64_t count) const {
    Outer job;
    job.steps = chunk.steps;
    job.dy = dy_ + (r * subs_ + sub) * chunk.steps * kGroup;
    const int vectors = static_cast<int>(core::ceil_div(count, pieces_per_vector_));
    // The columns to prefetch: the next triple of the same block row, or the first of the next block row.
    const std::int64_t last = pieces_total_ - 1, next = w_.crow[r] * pieces_per_block_ + first + count;
    const std::int64_t cells = chunk.steps * piece_ / subs_;  // this sub's share of each piece
    job.next_lines = static_cast<int>(core::ceil_div(kAskSteps * piece_ / subs_, kLineCells));
    for (std::int64_t i = 0; i < vectors * pieces_per_vector_; ++i) {
      const std::int64_t piece =
          first + std::min(i, count - 1);  // a missing second half repeats the first and is not written
      job.pieces[i] = columns(chunk, w_.crow[r] * pieces_per_block_ + piece);
      job.next[i] = columns(chunk, std::min(next + i, last)) + sub * cells;
    }
    alignas(64) float tile[kGroup * kMaxVectors * kMaxLanes];
    outer_[vectors](job, tile);
    for (std::int64_t i = 0; i < count; ++i) write_piece(chunk, r, sub, first + i, tile + i * piece_);
  }

  // Padding is written as zero. The product with padded zeros would be NaN if the other operand is infinite.
  void write_piece(const Chunk& chunk, std::int64_t r, std::int64_t sub, std::int64_t piece,
                   float* tile) const {
    const std::int64_t block = w_.crow[r] + piece / pieces_per_block_;
    const std::int64_t column = piece % pieces_per_block_ * piece_;
    const std::int64_t row = sub * kGroup;
    const std::int64_t valid_rows = w_.rows - (r * w_.block.rows + row);
    const std::int64_t valid_columns = source_.valid(w_, w_.col[block]) - column;
    const bool last = chunk.token + chunk.tokens == args_.m;
    for (std::int64_t i = 0; i < kGroup; ++i) {
      float* run = tile + i * kMaxVectors * ops_.lanes;
      for (std::int64_t j = i < valid_rows ? std::max<std::int64_t>(valid_columns, 0) : 0; j < piece_; ++j)
        run[j] = 0;
      const std::int64_t at = block * w_.block_elements() + (row + i) * w_.block.cols + column;
      const float* partial = chunk.token > 0 || args_.accumulate ? partial_ + at : nullptr;
      if (last)
        write_run(run, partial, piece_, result_,
                  static_cast<char*>(args_.out) + at * static_cast<std::int64_t>(size_of(result_)));
      else
        write_run(run, partial, piece_, DType::f32, partial_ + at);
    }
  }

  const PanelOps& ops_;
  Source source_;
  const MatmulArgs& args_;
  const Executor& executor_;
  const IndexView& w_;
  DType result_;
  OuterShape shape_;
  int piece_;
  std::int64_t pieces_per_vector_, pieces_per_block_, subs_, pieces_total_, tasks_ = 1;
  bool few_ = false;         // outer_few multiplies
  Stage* stages_ = nullptr;  // stages of the chunks
  float *x_ = nullptr, *dy_ = nullptr, *partial_ = nullptr;
  OuterFunction outer_[kMaxVectors + 1] = {};
};

}  // namespace sparseloom::kernels::cpu
