// The driver of the grouped kernels: blocks of tokens are transposed, then work items are claimed one by one.
#if defined(__x86_64__)

#include "kernels/nmg_linear/cpu/grouped.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/shared/cpu/claims.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

/// Features of a work item of packing, chunks of one of dW, and tiles of which an element of dW adds up the
/// sums before they are set aside.
constexpr std::int64_t kColumns = 512, kChunksOfItem = 8, kTilesAtOnce = 512;

/// The sizes of a product's tiles and of its buffers in floats, each of whole lines.
struct Sizes {
  std::int64_t lanes, vectors;              // of the widest tile
  std::int64_t cells, tokens;               // of the widest tile
  std::int64_t of_cell;                     // tokens of a cell
  std::int64_t features, outputs;           // of x and of dY, with the padding of W
  std::int64_t summed;                      // features that a work item of forward and dX sums
  std::int64_t sums, copies, rows, values;  // copies: of the sums
  bool aside;                               // whether sums are set aside

  Sizes(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w) {
    const bool forward = direction == Direction::forward;
    lanes = ops.lanes, vectors = grouped_vectors(ops, direction, m, w);
    cells = tokens_of(lanes, vectors);
    of_cell = takes_cells(ops, direction, m, w) ? ops.tokens_of_cell : 1;
    tokens = cells * of_cell;
    features = w.strips() * w.m, outputs = w.chunks() * w.chunk_rows();
    summed = forward ? w.chunk_rows() : std::min(w.strips(), strips_of_item(w, direction, vectors)) * w.m;
    aside = forward ? w.strips() > strips_at_once(w) : w.chunks() > kChunksAtOnce;
    sums = sums_of(lanes, vectors * of_cell, summed);
    copies = forward ? 1 : std::min(kTilesOfItem, core::ceil_div(m, tokens));
    rows = core::round_up(tokens * core::round_up(summed, lanes), kLineCells);
    values = core::round_up(w.chunk_rows() * w.n + lanes, kLineCells);
  }
  /// Tiles of m tokens, of which only the last may be narrower than the others.
  std::int64_t tiles(std::int64_t m) const { return core::ceil_div(m, tokens); }
  std::int64_t scratch() const { return (aside ? 2 : 1) * copies * sums + rows + values; }
  /// Cells of m tokens of one feature: of whole vectors, and of dW of whole tiles.
  std::int64_t packed(Direction direction, std::int64_t m) const {
    return direction == Direction::dw ? tiles(m) * cells
           : vectors == 0             ? m
                                      : core::ceil_div(m, lanes * of_cell) * lanes;
  }
  TokenTile tile(Direction direction, std::int64_t i, std::int64_t m, std::int64_t depth, float* x) const {
    const std::int64_t in_all = core::ceil_div(m, lanes * of_cell), first = i * vectors;
    return {i * tokens, direction == Direction::dw ? vectors : std::min(vectors, in_all - first),
            x + i * cells * depth};
  }
};

/// Packs the tiles of a matrix with `depth` features as one phase.
void pack(const Sizes& sizes, Direction direction, decltype(GroupedOps::pack) pack_features,
          const TokenMatrix& matrix, std::int64_t depth, float* x, Phase& phase) {
  const std::int64_t pieces = core::ceil_div(depth, kColumns);
  phase.work([&](std::int64_t item) {
    const std::int64_t begin = item % pieces * kColumns;
    pack_features(matrix, sizes.tile(direction, item / pieces, matrix.tokens, depth, x), begin,
                  std::min(begin + kColumns, depth));
  });
}

/// The number of work items of pack.
std::int64_t pack_items(const Sizes& sizes, std::int64_t m, std::int64_t depth) {
  return sizes.tiles(m) * core::ceil_div(depth, kColumns);
}

std::int64_t tasks_for(std::int64_t m, const NmgView& w, const Executor& executor) {
  return tasks_of(static_cast<double>(m) * static_cast<double>(Nmg::stored(w)) / kTaskProducts, executor);
}

/// Forward or dX of a block of tokens.
void run_block(const GroupedOps& ops, const GroupedJob& job, const Sizes& sizes, Direction direction,
               const Executor& executor) {
  const MatmulArgs& args = job.args;
  const NmgView& w = job.w;
  const bool forward = direction == Direction::forward;
  const std::int64_t depth = forward ? sizes.features : sizes.outputs;
  float* const x = reinterpret_cast<float*>(args.workspace);
  float* const scratch = x + core::round_up(sizes.packed(direction, args.m) * depth, kLineCells);
  const std::int64_t strips = strips_of_item(w, direction, sizes.vectors), tiles = sizes.tiles(args.m);
  const std::int64_t items = forward ? w.chunks() : core::ceil_div(w.strips(), strips);
  const std::int64_t tasks = tasks_for(args.m, w, executor);
  const std::int64_t of_item =
      std::clamp<std::int64_t>(tiles * items / (kPartsOfTask * tasks), 1, kTilesOfItem);
  Phase packing(pack_items(sizes, args.m, depth)), products(core::ceil_div(tiles, of_item) * items);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    pack(sizes, direction, sizes.of_cell > 1 ? ops.pack_cells : ops.pack,
         {args.a, args.a_stride, args.m, forward ? w.cols : w.rows}, depth, x, packing);
    packing.wait();
    float* const own = scratch + task * sizes.scratch();
    float* const rows = own + (sizes.aside ? 2 : 1) * sizes.copies * sizes.sums;
    const Scratch buffers{own, own + sizes.copies * sizes.sums, rows, rows + sizes.rows, sizes.sums};
    products.work([&](std::int64_t item) {
      TokenTile of[kTilesOfItem];
      std::int64_t count = 0;
      const std::int64_t begin = item / items * of_item, at = item % items;
      for (std::int64_t i = begin; i < std::min(begin + of_item, tiles); ++i)
        of[count++] = sizes.tile(direction, i, args.m, depth, x);
      const std::span<const TokenTile> taken(of, static_cast<std::size_t>(count));
      const auto dx = sizes.of_cell > 1 ? ops.dx_pairs : ops.dx;
      if (!forward) return dx(job, taken, {at * strips, std::min((at + 1) * strips, w.strips())}, buffers);
      for (const TokenTile& tile : taken) ops.chunk(job, tile, at, buffers);
    });
  });
}

/// dW: sums of a block are added to those of the blocks before it.
struct DwBuffers {
  float *dy, *x;
  float* sums;   // [slots] in fp32: the result itself if it is
  float* part;   // [slots]: the sums of kTilesAtOnce tiles, or null where there are not more
  bool rounded;  // whether the result is not fp32
};

/// Adds a block of tokens whose first tile is tile `begun` of the call.
void run_block_of_dw(const GroupedOps& ops, const GroupedJob& job, const Sizes& sizes,
                     const DwBuffers& buffers, std::int64_t begun, bool last, const Executor& executor) {
  constexpr Direction kDw = Direction::dw;
  const MatmulArgs& args = job.args;
  const NmgView& w = job.w;
  const std::int64_t tiles = sizes.tiles(args.m), slots = w.chunk_rows() * w.n;
  const std::int64_t strips = strips_of_item(w, kDw, sizes.vectors),
                     ranges = core::ceil_div(w.strips(), strips);
  const std::int64_t groups = core::ceil_div(w.chunks(), kChunksOfItem);
  const bool folds = buffers.part != nullptr && (last || (begun + tiles) % kTilesAtOnce == 0);
  const bool first_fold = begun < kTilesAtOnce && !args.accumulate;
  Phase of_dy(pack_items(sizes, args.m, sizes.outputs)), of_x(pack_items(sizes, args.m, sizes.features));
  Phase products(ranges * groups);
  runtime::parallel_tasks(executor, tasks_for(args.m, w, executor), [&](std::int64_t) {
    pack(sizes, kDw, ops.pack_cells, {args.a, args.a_stride, args.m, w.rows}, sizes.outputs, buffers.dy,
         of_dy);
    pack(sizes, kDw, ops.pack_cells, {args.b, args.b_stride, args.m, w.cols}, sizes.features, buffers.x,
         of_x);
    of_dy.wait(), of_x.wait();
    products.work([&](std::int64_t item) {
      const Range range{item / groups * strips, std::min((item / groups + 1) * strips, w.strips())};
      const Range chunks{item % groups * kChunksOfItem,
                         std::min((item % groups + 1) * kChunksOfItem, w.chunks())};
      float* const sums = buffers.part != nullptr ? buffers.part : buffers.sums;
      for (std::int64_t i = 0; i < tiles; ++i) {
        const TokenTile x = sizes.tile(kDw, i, args.m, sizes.features, buffers.x);
        const TokenTile dy = sizes.tile(kDw, i, args.m, sizes.outputs, buffers.dy);
        const bool adds =
            buffers.part != nullptr ? (begun + i) % kTilesAtOnce != 0 : begun + i > 0 || args.accumulate;
        for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk)
          ops.dw(job, x, dy.x + chunk * w.chunk_rows() * sizes.cells, chunk, range, sums, adds);
      }
      for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
        const std::int64_t begin = (chunk * w.strips() + range.begin) * slots,
                           end = (chunk * w.strips() + range.end) * slots;
        for (std::int64_t i = begin; folds && i < end; ++i)
          buffers.sums[i] = first_fold ? sums[i] : buffers.sums[i] + sums[i];
        if (last && buffers.rounded) ops.write_dw(buffers.sums, begin, end, args.out);
      }
    });
  });
}

/// Floats of the buffers of dW behind the packed tiles.
std::int64_t dw_sums(const Sizes& sizes, bool rounded, std::int64_t m, const NmgView& w) {
  const std::int64_t stored = core::round_up(Nmg::stored(w), kLineCells);
  return stored * ((rounded ? 1 : 0) + (sizes.tiles(m) > kTilesAtOnce ? 1 : 0));
}

void run_dw(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor) {
  const Sizes sizes(ops, Direction::dw, args.m, w);
  const std::int64_t packed = sizes.packed(Direction::dw, std::min(args.m, kBlockTokens));
  const std::int64_t stored = core::round_up(Nmg::stored(w), kLineCells);
  DwBuffers buffers;
  buffers.dy = reinterpret_cast<float*>(args.workspace);
  buffers.x = buffers.dy + core::round_up(packed * sizes.outputs, kLineCells);
  float* const after = buffers.x + core::round_up(packed * sizes.features, kLineCells);
  buffers.rounded = args.dtype != DType::f32 && !args.accumulate;
  buffers.sums = buffers.rounded ? after : static_cast<float*>(args.out);
  buffers.part = sizes.tiles(args.m) > kTilesAtOnce ? after + (buffers.rounded ? stored : 0) : nullptr;
  const auto bytes = static_cast<std::int64_t>(size_of(args.dtype));
  for (std::int64_t token = 0; token < args.m; token += kBlockTokens) {
    MatmulArgs block = args;
    block.m = std::min(kBlockTokens, args.m - token);
    block.a = static_cast<const std::byte*>(args.a) + token * args.a_stride * bytes;
    block.b = static_cast<const std::byte*>(args.b) + token * args.b_stride * bytes;
    run_block_of_dw(ops, {block, w}, sizes, buffers, token / sizes.tokens, token + block.m == args.m,
                    executor);
  }
}

}  // namespace

bool takes_cells(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w) {
  if (direction != Direction::dx) return direction == Direction::dw;
  return ops.dx_pairs != nullptr && m > 1 && w.n <= 2 && w.g % 2 == 0;
}

std::int64_t grouped_vectors(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w) {
  if (m == 1) return 0;
  constexpr std::int64_t kCells = 8192;  // 32 KB
  const bool dw = direction == Direction::dw, in_cells = takes_cells(ops, direction, m, w);
  const std::int64_t most = !dw                          ? kMostVectors / (in_cells ? 2 : 1)
                            : w.n == 2 || ops.lanes < 16 ? 4
                                                         : kMostVectorsOfDw;
  const std::int64_t room = std::clamp<std::int64_t>(kCells / (w.chunk_rows() * ops.lanes), 1, most);
  const std::int64_t cell = in_cells ? ops.tokens_of_cell : 1;
  const std::int64_t needed = core::ceil_div(std::max<std::int64_t>(m, 1), ops.lanes * cell);
  if (!dw) return std::min(room, needed);
  std::int64_t vectors = 1;  // a power of two
  while (2 * vectors <= room && vectors < needed) vectors *= 2;
  return vectors;
}

std::size_t grouped_workspace(const GroupedOps& ops, Direction direction, DType dtype, std::int64_t m,
                              const NmgView& w, std::int64_t threads) {
  if (takes_outputs(ops, direction, m, w)) return outputs_workspace(ops, m, w, threads);
  const Sizes sizes(ops, direction, m, w);
  const bool dw = direction == Direction::dw;
  const std::int64_t packed = sizes.packed(direction, std::min(m, kBlockTokens));
  const std::int64_t x = core::round_up(packed * sizes.features, kLineCells),
                     dy = core::round_up(packed * sizes.outputs, kLineCells);
  // A plan does not know whether dW will be accumulated.
  const std::int64_t behind = dw ? dw_sums(sizes, dtype != DType::f32, m, w) : threads * sizes.scratch();
  return sizeof(float) * static_cast<std::size_t>((direction != Direction::dx ? x : 0) +
                                                  (direction != Direction::forward ? dy : 0) + behind);
}

void run_grouped(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor) {
  if (args.m == 0 || (args.direction == Direction::dx ? w.cols : w.rows) == 0) return;
  ops.runs->add();
  if (args.direction == Direction::dw) return run_dw(ops, args, w, executor);
  if (takes_outputs(ops, args.direction, args.m, w)) return run_outputs(ops, args, w, executor);
  const Sizes sizes(ops, args.direction, args.m, w);
  const auto bytes = static_cast<std::int64_t>(size_of(args.dtype));
  for (std::int64_t token = 0; token < args.m; token += kBlockTokens) {
    MatmulArgs block = args;
    block.m = std::min(kBlockTokens, args.m - token);
    block.a = static_cast<const std::byte*>(args.a) + token * args.a_stride * bytes;
    block.out = static_cast<std::byte*>(args.out) + token * args.out_stride * bytes;
    run_block(ops, {block, w}, sizes, args.direction, executor);
  }
}

}  // namespace sparseloom::kernels::cpu

#endif
