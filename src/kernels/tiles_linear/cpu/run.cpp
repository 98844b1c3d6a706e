// The driver of tiles: the lists of a call, and its run.
#if defined(__x86_64__)

#include <algorithm>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel_run.h"
#include "kernels/tiles_linear/cpu/ops.h"

namespace sparseloom::kernels::cpu {
namespace {

constexpr std::int32_t kSide = 64;

/// Of each block row (dX: block column) of units its units, ascending: the bounds of its list [blocks + 1],
/// and for each unit where it lies along the depth, and its entry of the table.
struct Lists {
  std::int32_t *bounds, *depth, *entry;

  Lists(std::byte* memory, std::int64_t blocks, std::int64_t units)
      : bounds(reinterpret_cast<std::int32_t*>(memory)), depth(bounds + blocks + 1), entry(depth + units) {}

  /// Returns the number of units. Those behind the edge of W are left out: their values are zero.
  std::int64_t fill(const TilesView& w, bool forward) const {
    const std::int64_t down = core::ceil_div(w.rows, std::int64_t{kSide}),
                       across = core::ceil_div(w.cols, std::int64_t{kSide});
    const std::int64_t blocks = forward ? down : across, others = forward ? across : down;
    std::int32_t count = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      bounds[block] = count;
      for (std::int64_t other = 0; other < others; ++other) {
        const std::int32_t named = forward ? w.entry(block * kSide, other) : w.entry(other * kSide, block);
        if (named < 0) continue;
        depth[count] = static_cast<std::int32_t>(other), entry[count] = named;
        ++count;
      }
    }
    bounds[blocks] = count;
    return count;
  }
};

struct TilesSource {
  static constexpr bool kPlaces = false;
  const TilesView& w;
  const std::int32_t* entry;
  void pack(const PanelOps& ops, const PanelJob& job, const Pack& pack) const { ops.pack(job, pack); }
  void complete(PanelJob& job) const { job.slot = entry, job.tiles = &w; }
};

std::int64_t blocks_of(const Problem& p) {
  return core::ceil_div(p.direction == Direction::forward ? p.rows : p.cols, std::int64_t{kSide});
}

}  // namespace

Problem tiles_problem(Direction direction, DType dtype, std::int64_t m, std::int64_t rows, std::int64_t cols,
                      std::int64_t units) {
  Problem p;
  p.direction = direction, p.dtype = dtype, p.m = m, p.rows = rows, p.cols = cols;
  p.block = {kSide, kSide}, p.blocks = units;
  return p;
}

std::size_t tiles_workspace(const PanelOps& ops, const Problem& p) {
  return PanelMemory(ops, p).bytes +
         static_cast<std::size_t>(blocks_of(p) + 1 + 2 * p.blocks) * sizeof(std::int32_t);
}

void run_tiles(const PanelOps& ops, const MatmulArgs& given, const TilesView& w, const Executor& executor) {
  const bool forward = given.direction == Direction::forward;
  if (given.m == 0 || (forward ? w.rows : w.cols) == 0) return;
  ops.runs->add();
  const std::int64_t parts = w.side / kSide;
  const Problem p = tiles_problem(given.direction, given.dtype, given.m, w.rows, w.cols,
                                  (w.dense + w.halves) * parts * parts);
  const Lists lists(given.workspace + PanelMemory(ops, p).bytes, blocks_of(p), p.blocks);
  MatmulArgs args = given;
  args.index = {w.rows, w.cols, {kSide, kSide}, lists.fill(w, forward), lists.bounds, lists.depth};
  args.transposed = {lists.bounds, lists.depth, lists.entry};
  PanelRun<TilesSource> run(ops, args, p, {w, lists.entry}, executor);
  run.begin();
  runtime::parallel_tasks(executor, run.tasks(), [&](std::int64_t task) {
    DeferredLines lines;
    run.work(task, lines);
    lines.finish();
  });
}

}  // namespace sparseloom::kernels::cpu

#endif
