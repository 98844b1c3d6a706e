// Forward and dx on AMX tiles: they pack tokens into micro-panels, and run the strips over a few panels at a
// time, which stay in L2.
#if defined(__x86_64__)

#include <algorithm>
#include <new>
#include <optional>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "kernels/shared/cpu/tile.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

// Bytes of the packed input of one chunk of tokens, as in the panel kernels; and of the group of panels (a
// macro tile) over which the strips run at a time, which is half an L2 of the smallest machine with AMX; the
// weights of a strip and the outputs use the other half.
constexpr std::int64_t kPanelBytes = 16 << 20, kMacroBytes = 1 << 20;
// Steps of a panel that one work item packs, so that all threads can help to pack even a single panel.
constexpr std::int64_t kPackSteps = 256;
// The least number of work items into which the outputs are divided.
constexpr std::int64_t kParts = 16;

/// The sizes on which workspace_bytes() and the run must agree: a function of the problem without its
/// threads.
struct Panels {
  int outputs;         // outputs of a strip: two tiles high if a block is that high
  int vectors;         // vectors of a panel, such that a strip has up to four tiles of sums
  std::int64_t steps;  // cells of depth, padded to whole blocks
  std::int64_t count;  // panels of all tokens
  std::int64_t chunk;  // panels that fit into the workspace

  Panels(int per_cell, std::int64_t m, std::int64_t output_block, std::int64_t depth_block,
         std::int64_t depth)
      : outputs(static_cast<int>(std::min<std::int64_t>(output_block, 2 * kTileSide))),
        vectors(outputs == 2 * kTileSide ? 2 : 4),
        steps(round_up(depth, depth_block) / per_cell),
        count(ceil_div(ceil_div(m, kTileSide), vectors)),
        chunk(std::min(count, std::max<std::int64_t>(
                                  1, kPanelBytes / std::max<std::int64_t>(1, cells() * kCellBytes)))) {}
  std::int64_t cells() const { return steps * vectors * kTileSide; }
  std::int64_t packed_bytes() const { return round_up(chunk * cells() * kCellBytes, kAlign); }
  std::int64_t chunks() const { return count == 0 ? 0 : ceil_div(count, chunk); }
  std::int64_t bytes() const {
    return packed_bytes() + std::max(chunk * static_cast<std::int64_t>(sizeof(OpenGroup)),
                                     chunks() * static_cast<std::int64_t>(sizeof(Stage)));
  }
  std::int64_t macro() const {
    return std::max<std::int64_t>(1, kMacroBytes / std::max<std::int64_t>(1, cells() * kCellBytes));
  }
};

class TileRun {
 public:
  TileRun(const TileOps& ops, const MatmulArgs& args, const Executor& executor)
      : ops_(ops),
        args_(args),
        executor_(executor),
        job_(panel_job(args)),
        costs_(args),
        panels_(ops.per_cell, args.m, job_.output_block, job_.depth_block, job_.depth),
        buffer_(reinterpret_cast<float*>(args.workspace)) {
    const double m = static_cast<double>(args.m);
    const double tasks =
        m * static_cast<double>(args.index.blocks * args.index.block_elements()) / kTileTaskProducts +
        m * static_cast<double>(job_.depth + job_.outputs) / kTaskProducts;
    tasks_ = tasks_of(tasks, executor);
    streams_ = outgrows_l2(job_, tasks_);
    for (int v = 1; v <= panels_.vectors; ++v) strips_[v] = ops.strip(panels_.outputs, v);
  }

  void run() {
    ops_.runs->add();
    if (args_.direction == Direction::dx)
      transposed_.emplace(kAvx512Bf16Panel.transpose, args_, tasks_,
                          reinterpret_cast<std::uint16_t*>(args_.workspace + panels_.bytes()), job_);
    cut_by_tokens() ? by_tokens() : by_outputs();
  }

 private:
  template <class Body>
  void each_task(const Body& body) const {
    runtime::parallel_tasks(executor_, tasks_, body);
  }

  // There are two ways to divide a call. By tokens: a task packs its own tokens into its own L2, and reads
  // all weights once for each of its macro tiles. By outputs: all tasks pack together, and each reads all
  // packed tokens; that is for calls with too few panels for the tasks. This chooses the way that moves fewer
  // bytes from beyond L2.
  bool cut_by_tokens() const {
    if (tasks_ == 1) return true;
    if (panels_.chunk < tasks_ || ceil_div(panels_.count, tasks_) * tasks_ * 8 > panels_.count * 9)
      return false;
    const double input = static_cast<double>(panels_.count * panels_.cells() * kCellBytes);
    const double weights = static_cast<double>(args_.index.blocks * args_.index.block_elements()) *
                           static_cast<double>(size_of(args_.dtype));
    const auto passes = [this](std::int64_t count) {
      return static_cast<double>(ceil_div(count, panels_.macro()));
    };
    const double tasks = static_cast<double>(tasks_);
    const double by_tokens = input / tasks + weights * passes(ceil_div(panels_.count, tasks_));
    const double by_outputs = input * (1 + 2 / tasks) + weights / tasks * passes(panels_.count);
    return by_tokens <= by_outputs;
  }

  int width(std::int64_t panel) const {
    return static_cast<int>(
        std::min<std::int64_t>(panels_.vectors, ceil_div(job_.tokens, kTileSide) - panel * panels_.vectors));
  }

  // Packs steps [begin, end) of the depth of a panel.
  void pack(std::int64_t panel, std::int64_t begin, std::int64_t end, float* to) const {
    ops_.pack_panel(job_, {panel * panels_.vectors * kTileSide, width(panel), begin, end, to});
  }

  // Each task packs a group of panels at a time into its own range of the workspace and multiplies it. When
  // no group is left, it takes work items of the groups that others have open.
  void by_tokens() {
    const std::int64_t fit = std::min(panels_.macro(), panels_.chunk / tasks_);
    const std::int64_t groups =
        tasks_ * ceil_div(ceil_div(panels_.count, tasks_), fit);  // as even as possible
    auto* const open = reinterpret_cast<OpenGroup*>(args_.workspace + panels_.packed_bytes());
    for (std::int64_t task = 0; task < tasks_; ++task) new (open + task) OpenGroup(parts());
    Claims claims;
    each_task([&](std::int64_t task) {
      transpose_weights();
      float* const room = buffer_ + task * fit * panels_.cells();
      DeferredLines lines;
      const auto multiply = [&](Range panels, const float* packed, std::int64_t part) {
        strips(panels, packed, units_of(part), lines);
      };
      ops_.begin(shape());
      for (std::int64_t g; (g = claims.take()) < groups;) {
        // Pack a group.
        const Range group = share(panels_.count, g, groups);
        for (std::int64_t p = group.begin; p < group.end; ++p)
          pack(p, 0, panels_.steps, room + (p - group.begin) * panels_.cells());
        // Multiply it, and wait for the tasks that help.
        open[task].open(group, room);
        open[task].work(multiply);
        open[task].wait();
      }
      // Help the other tasks.
      for (std::int64_t other = 1; other < tasks_; ++other) open[(task + other) % tasks_].work(multiply);
      ops_.end();
      lines.finish();
    });
  }

  void transpose_weights() {
    if (!transposed_) return;
    transposed_->work();
    transposed_->wait();
  }

  // Packs a chunk together, then takes work items: some of the outputs, for as many panels as stay in L2.
  void by_outputs() {
    auto* const stages = reinterpret_cast<Stage*>(args_.workspace + panels_.packed_bytes());
    const std::int64_t runs = ceil_div(panels_.steps, kPackSteps);
    const auto panels_of = [&](std::int64_t chunk) {
      return Range{chunk * panels_.chunk, std::min(panels_.count, (chunk + 1) * panels_.chunk)};
    };
    const auto macros_of = [&](Range panels) { return ceil_div(panels.end - panels.begin, panels_.macro()); };
    for (std::int64_t chunk = 0; chunk < panels_.chunks(); ++chunk) {
      const Range panels = panels_of(chunk);
      new (stages + chunk)
          Stage{Phase((panels.end - panels.begin) * runs), Phase(macros_of(panels) * parts())};
    }
    each_task([&](std::int64_t) {
      transpose_weights();
      DeferredLines lines;
      ops_.begin(shape());
      for (std::int64_t chunk = 0; chunk < panels_.chunks(); ++chunk) {
        const Range panels = panels_of(chunk);
        // The previous chunk's panels are read until its last product.
        if (chunk > 0) stages[chunk - 1].products.wait();
        stages[chunk].packing.work([&](std::int64_t item) {
          const std::int64_t p = item / runs, begin = item % runs * kPackSteps;
          pack(panels.begin + p, begin, std::min(panels_.steps, begin + kPackSteps),
               buffer_ + p * panels_.cells());
        });
        stages[chunk].packing.wait();
        stages[chunk].products.work([&](std::int64_t item) {
          const std::int64_t first = panels.begin + item / parts() * panels_.macro();
          strips({first, std::min(panels.end, first + panels_.macro())},
                 buffer_ + (first - panels.begin) * panels_.cells(), units_of(item % parts()), lines);
        });
      }
      ops_.end();
      lines.finish();
    });
  }

  std::int64_t parts() const { return tasks_ == 1 ? 1 : std::max(kParts, kPartsOfTask * tasks_); }
  /// The units of one work item (part). Work items have equal costs and whole cache lines of outputs.
  Range units_of(std::int64_t part) const {
    return units_of_part(costs_, job_.output_blocks, subs(), part, parts(), together());
  }

  void strips(Range group, const float* buffer, Range units, DeferredLines& lines) const {
    for (std::int64_t unit = units.begin; unit < units.end; unit += together()) {
      const std::int64_t output = unit * panels_.outputs,
                         outputs = std::min(together(), units.end - unit) * panels_.outputs;
      if (output >= job_.outputs) break;
      for (std::int64_t p = group.begin; p < group.end; ++p) {
        const std::int64_t token = p * panels_.vectors * kTileSide;
        strips_[width(p)](job_, {buffer + (p - group.begin) * panels_.cells(), output, outputs, token,
                                 std::min<std::int64_t>(job_.tokens - token, width(p) * kTileSide),
                                 p == group.begin, streams_ ? &lines : nullptr});
      }
    }
  }

  TileShape shape() const {
    return {std::min(panels_.outputs, kTileSide),
            static_cast<int>(std::min<std::int64_t>(job_.depth_block, kTileSide * ops_.per_cell)), kTileSide,
            panels_.outputs > kTileSide ? 2 : 1};
  }
  std::int64_t subs() const { return job_.output_block / panels_.outputs; }
  std::int64_t units() const { return job_.output_blocks * subs(); }
  std::int64_t together() const { return kTileOutputs / panels_.outputs; }

  const TileOps& ops_;
  const MatmulArgs& args_;
  const Executor& executor_;
  PanelJob job_;
  RunningCosts costs_;
  Panels panels_;
  std::int64_t tasks_ = 1;
  bool streams_ = false;  // outputs are stored past the caches
  std::optional<TransposedValues> transposed_;
  float* buffer_;
  TileStripFunction strips_[5] = {};
};

}  // namespace

void run_tile(const TileOps& ops, const MatmulArgs& args, const Executor& executor) {
  const std::int64_t outputs = args.direction == Direction::forward ? args.index.rows : args.index.cols;
  if (args.m > 0 && outputs > 0) TileRun(ops, args, executor).run();  // with depth 0 it writes act(bias)
}

std::size_t tile_workspace(const Problem& problem) {
  const bool forward = problem.direction == Direction::forward;
  const std::int64_t bm = problem.block.rows, bn = problem.block.cols;
  const Panels panels(problem.dtype == DType::i8 ? 4 : 2, problem.m, forward ? bm : bn, forward ? bn : bm,
                      forward ? problem.cols : problem.rows);
  return static_cast<std::size_t>(panels.bytes() + (forward ? 0 : problem.blocks * bm * bn * 2));
}

}  // namespace sparseloom::kernels::cpu

#endif
