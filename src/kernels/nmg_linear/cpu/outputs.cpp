// The driver of forward output by output: blocks of tokens are transposed, then work items are claimed.
#if defined(__x86_64__)

#include "kernels/nmg_linear/cpu/outputs.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/nmg_linear/cpu/grouped.h"
#include "kernels/shared/cpu/claims.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

/// Outputs of a work item, which share a block of x in L1, and features of one of packing.
constexpr std::int64_t kOutputsOfItem = 300, kColumns = 512;

/// The sizes of a product's tiles and of a task's buffers in floats, each of whole lines.
struct Sizes {
  OutputBlocks blocks;
  std::int64_t lanes, vectors, tokens;  // of a full tile
  std::int64_t features, padded;        // of x; outputs of a chunk in whole groups
  std::int64_t chunks, tiles;           // of an item, at most
  std::int64_t sums;                    // of a tile
  std::int64_t written, values, pairs, weight, row, inverse;
  bool aside;

  Sizes(const GroupedOps& ops, std::int64_t m, const NmgView& w) {
    lanes = ops.lanes;
    vectors = std::clamp<std::int64_t>(core::ceil_div(m, lanes), 1, kMostVectors);
    tokens = vectors * lanes;
    blocks = output_blocks(ops, w, vectors);
    features = w.strips() * w.m, padded = core::round_up(w.chunk_rows(), kOutputsOfGroup);
    chunks = std::clamp<std::int64_t>(kOutputsOfItem / padded, 1, std::max<std::int64_t>(1, w.chunks()));
    tiles = std::clamp<std::int64_t>(core::ceil_div(m, tokens), 1, kTilesOfItem);
    sums = chunks * padded * tokens;
    written = core::round_up(tokens * core::round_up(w.chunk_rows(), lanes), kLineCells);
    // Vectors read tables of values in whole pairs of registers, and write over the end.
    values = 2 * core::round_up(w.chunk_rows(), 2 * lanes);
    pairs = blocks.pairs ? blocks.rows * tokens : 0;
    weight = core::round_up(chunks * padded * blocks.entries + lanes, kLineCells);
    row = core::round_up((weight + padded) / 2 + 1, kLineCells);  // the kernel reads an entry ahead
    inverse = core::round_up(core::round_up(w.chunk_rows(), lanes) * blocks.strips / 2, kLineCells);
    aside = core::ceil_div(w.strips(), blocks.strips) > kBlocksAtOnce;
  }
  std::int64_t scratch() const {
    return (aside ? 2 : 1) * tiles * sums + written + values + pairs + weight + row + inverse;
  }
  std::int64_t packed(std::int64_t m) const {
    return core::round_up(core::ceil_div(m, lanes) * lanes * features, kLineCells);
  }
  TokenTile tile(std::int64_t i, std::int64_t m, float* x) const {
    return {i * tokens, std::min(vectors, core::ceil_div(m, lanes) - i * vectors), x + i * tokens * features};
  }
  OutputScratch buffers(float* at) const {
    OutputScratch of;
    const auto take = [&](std::int64_t size) {
      float* const begin = at;
      at += size;
      return begin;
    };
    of.sums = take(tiles * sums);
    of.whole = aside ? take(tiles * sums) : nullptr;
    of.written = take(written), of.values = take(values), of.pairs = take(pairs);
    of.weight = take(weight);
    of.row = reinterpret_cast<std::uint16_t*>(take(row));
    of.inverse = reinterpret_cast<std::uint16_t*>(take(inverse));
    of.of_tile = sums;
    return of;
  }
};

void run_block(const GroupedOps& ops, const OutputJob& job, const Sizes& sizes, const Executor& executor) {
  const MatmulArgs& args = job.args;
  const NmgView& w = job.w;
  float* const x = reinterpret_cast<float*>(args.workspace);
  float* const scratch = x + sizes.packed(args.m);
  const std::int64_t tasks =
      tasks_of(static_cast<double>(args.m) * static_cast<double>(Nmg::stored(w)) / kTaskProducts, executor);
  const std::int64_t tiles = core::ceil_div(args.m, sizes.tokens);
  // Larger items make fewer rows of pairs.
  const std::int64_t wanted = (sizes.blocks.pairs ? kPartsOfTask / 2 : kPartsOfTask) * tasks;
  // Tiles first: they share the entries, which take longer to make than rows of pairs, which chunks share.
  const std::int64_t of_item = std::clamp<std::int64_t>(tiles * w.chunks() / wanted, 1, sizes.tiles);
  const std::int64_t groups = core::ceil_div(tiles, of_item);
  const std::int64_t chunks = std::clamp<std::int64_t>(w.chunks() * groups / wanted, 1, sizes.chunks);
  const std::int64_t items = core::ceil_div(w.chunks(), chunks);
  const std::int64_t pieces = core::ceil_div(sizes.features, kColumns);
  Phase packing(tiles * pieces), products(groups * items);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    packing.work([&](std::int64_t item) {
      const std::int64_t begin = item % pieces * kColumns;
      ops.pack({args.a, args.a_stride, args.m, w.cols}, sizes.tile(item / pieces, args.m, x), begin,
               std::min(begin + kColumns, sizes.features));
    });
    packing.wait();
    const OutputScratch buffers = sizes.buffers(scratch + task * sizes.scratch());
    products.work([&](std::int64_t item) {
      TokenTile of[kTilesOfItem];
      std::size_t count = 0;
      const std::int64_t begin = item / items * of_item, chunk = item % items * chunks;
      for (std::int64_t i = begin; i < std::min(begin + of_item, tiles); ++i)
        of[count++] = sizes.tile(i, args.m, x);
      ops.outputs(job, std::span<const TokenTile>(of, count), {chunk, std::min(chunk + chunks, w.chunks())},
                  buffers);
    });
  });
}

/// Whether the rows of pairs are at most twice as many as the inputs.
bool pairs_of_inputs(const GroupedOps& ops, const NmgView& w) {
  return ops.pairs_of_inputs && ((w.n == 2 && w.m <= 5) || (w.n == 1 && w.m <= 4));
}

}  // namespace

bool takes_outputs(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w) {
  // For fewer tokens, entries take longer to make than sums to store.
  if (direction != Direction::forward || ops.outputs == nullptr) return false;
  return pairs_of_inputs(ops, w) ? m > 2 * ops.lanes : w.n == 1 && m > 3 * ops.lanes;
}

OutputBlocks output_blocks(const GroupedOps& ops, const NmgView& w, std::int64_t vectors) {
  // Vectors of a block that fit into L1; of sparse patterns more, to have as many entries for an output as
  // pay for the load and the store of its sum.
  constexpr std::int64_t kInputs = 256, kPairs = 512, kLeastEntries = 16;
  if (!pairs_of_inputs(ops, w)) {
    const std::int64_t fit = kInputs / (vectors * w.m), in_l2 = 4 * kInputs / (vectors * w.m);
    const std::int64_t strips = std::max({std::int64_t{1}, fit, std::min(kLeastEntries, in_l2)});
    return {false, strips, strips, strips * w.m};
  }
  const std::int64_t rows = w.n == 2 ? w.patterns : w.m * w.m;
  const std::int64_t entries = std::max<std::int64_t>(1, kPairs / (vectors * rows));
  return {true, entries * (w.n == 2 ? 1 : 2), entries, entries * rows};
}

std::size_t outputs_workspace(const GroupedOps& ops, std::int64_t m, const NmgView& w, std::int64_t threads) {
  const Sizes sizes(ops, m, w);
  return sizeof(float) *
         static_cast<std::size_t>(sizes.packed(std::min(m, kBlockTokens)) + threads * sizes.scratch());
}

void run_outputs(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor) {
  const Sizes sizes(ops, args.m, w);
  const auto bytes = static_cast<std::int64_t>(size_of(args.dtype));
  for (std::int64_t token = 0; token < args.m; token += kBlockTokens) {
    MatmulArgs block = args;
    block.m = std::min(kBlockTokens, args.m - token);
    block.a = static_cast<const std::byte*>(args.a) + token * args.a_stride * bytes;
    block.out = static_cast<std::byte*>(args.out) + token * args.out_stride * bytes;
    run_block(ops, {block, w, sizes.blocks}, sizes, executor);
  }
}

}  // namespace sparseloom::kernels::cpu

#endif
