// Forward and dx of the panel kernels: pack a chunk of tokens into panels, then run the strips over them.
#include "kernels/cpu/panel.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/tile.h"
#include "runtime/cpu.h"
#include "runtime/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

// The packed input of one chunk of tokens: half an L3 of the smallest machines in mind, and bounded for any number of tokens.
constexpr std::int64_t kPanelBytes = 16 << 20;
constexpr std::int64_t kCellBytes = 4;
// Of L2, for panels that pass the weights side by side, so that these come from memory once for all of them: the rest is for two
// strips of weights. 800 KB of a Zen 4's 1 MiB.
constexpr double kPanelsInL2 = 0.78;
constexpr std::int64_t kAlign = 64, kLineBytes = 64;

// Vectors of tokens in one chunk of at most `fit` of `total`: as even as whole panels allow, so that none is a single slow vector.
std::int64_t even_chunk(std::int64_t total, std::int64_t fit) {
  if (total <= fit) return total;
  return fit < kMaxVectors
             ? fit
             : std::min(fit / kMaxVectors * kMaxVectors, round_up(ceil_div(total, ceil_div(total, fit)), kMaxVectors));
}

// What there is workspace for.
std::int64_t chunk_vectors(std::int64_t tokens, std::int64_t steps, int lanes) {
  return even_chunk(ceil_div(tokens, lanes),
                    std::max<std::int64_t>(1, kPanelBytes / std::max<std::int64_t>(1, steps * lanes * kCellBytes)));
}

// `vectors` vectors as panels of at most three, as even as they go: 4 are 2 + 2, since a panel of one wastes its broadcasts.
struct Panels {
  std::int64_t vectors, count;
  explicit Panels(std::int64_t n) : vectors(n), count(ceil_div(n, kMaxVectors)) {}
  std::int64_t first(std::int64_t panel) const { return vectors / count * panel + std::min(panel, vectors % count); }
  int width(std::int64_t panel) const { return static_cast<int>(first(panel + 1) - first(panel)); }
};

// [bm][bn] elements -> [bm / 2][bn] cells of two rows: dx multiplies pairs of dY features.
void interleave_rows(const std::uint16_t* values, std::int64_t block_cols, Range rows, std::uint16_t* out) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::uint16_t* upper = values + 2 * r * block_cols;
    const std::uint16_t* lower = upper + block_cols;
    std::uint16_t* cells = out + 2 * r * block_cols;
    for (std::int64_t c = 0; c < block_cols; ++c) cells[2 * c] = upper[c], cells[2 * c + 1] = lower[c];
  }
}

class PanelRun {
 public:
  PanelRun(const PanelOps& ops, const MatmulArgs& args, const Executor& executor)
      : ops_(ops),
        executor_(executor),
        job_(panel_job(args)),
        steps_(job_.depth_blocks * job_.depth_block / ops.depth_step),
        subs_(job_.output_block / kGroup),
        panels_memory_(reinterpret_cast<float*>(args.workspace)) {
    const double products = static_cast<double>(args.m) * static_cast<double>(args.index.blocks * args.index.block_elements()) +
                            static_cast<double>(args.m) * static_cast<double>(job_.depth + job_.outputs);
    tasks_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(products / kTaskProducts), 1, std::max(1, executor.num_threads));
    for (int v = 1; v <= kMaxVectors; ++v) strips_[v] = ops.strip(job_.dtype, job_.direction, v);
    const std::int64_t one_panel = std::max<std::int64_t>(1, kMaxVectors * ops.lanes * steps_ * kCellBytes);
    const auto room = static_cast<std::int64_t>(kPanelsInL2 * static_cast<double>(runtime::l2_cache_bytes()));
    panels_at_once_ = std::max<std::int64_t>(1, room / one_panel);
    // No more at a time than the threads multiply next: each then finds in L2 what it has packed itself, 2 to 5 % of a product of
    // density .05 or .1.
    chunk_ = std::min(chunk_vectors(args.m, steps_, ops.lanes),
                      even_chunk(ceil_div(args.m, ops.lanes), tasks_ * panels_at_once_ * kMaxVectors));
    const auto out_size = static_cast<std::int64_t>(size_of(job_.out_dtype));
    job_.streams = args.m * job_.outputs * out_size > tasks_ * runtime::l2_cache_bytes();
    if (job_.streams) together_ = std::clamp<std::int64_t>(kLineBytes / (kGroup * out_size), 1, kMostStrips);
    if (args.direction == Direction::dx && ops.interleaves_dx) {
      auto* cells = reinterpret_cast<std::uint16_t*>(args.workspace + panel_bytes());
      interleave(static_cast<const std::uint16_t*>(job_.values), args.index.blocks * args.index.block.rows / 2, cells);
      job_.values = cells;
    }
    if (ops.sum_rows != nullptr && ceil_div(args.m, ops.lanes) > kMaxVectors) {
      row_sums_ = reinterpret_cast<std::int32_t*>(args.workspace + panel_bytes());
      job_.row_sums = row_sums_;
    }
  }

  void run() {
    const std::int64_t vectors = ceil_div(job_.tokens, ops_.lanes);
    for (std::int64_t first = 0; first < vectors; first += chunk_) {
      const Panels panels(std::min(chunk_, vectors - first));
      each_task([&](std::int64_t task) {
        pack(panels, first, task);
        if (first == 0 && row_sums_ != nullptr) sum_rows(task);
      });
      each_task([&](std::int64_t task) { multiply(panels, first, task); });
    }
  }

 private:
  std::int64_t panel_bytes() const { return round_up(chunk_ * ops_.lanes * steps_ * kCellBytes, kAlign); }
  float* panel(const Panels& panels, std::int64_t p) const { return panels_memory_ + panels.first(p) * ops_.lanes * steps_; }

  template <class Body>
  void each_task(const Body& body) {
    runtime::parallel_for(executor_, tasks_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) body(task);
    });
  }

  void interleave(const std::uint16_t* values, std::int64_t row_pairs, std::uint16_t* cells) {
    each_task([&](std::int64_t task) { interleave_rows(values, job_.block_cols, share(row_pairs, task, tasks_), cells); });
  }

  // Units are runs of 256 steps of a panel, so that a single panel is packed by all threads too.
  void pack(const Panels& panels, std::int64_t first_vector, std::int64_t task) {
    constexpr std::int64_t kRun = 256;
    const std::int64_t runs = ceil_div(steps_, kRun);
    const Range mine = share(panels.count * runs, task, tasks_);
    for (std::int64_t unit = mine.begin; unit < mine.end; ++unit) {
      const std::int64_t p = unit / runs, begin = unit % runs * kRun;
      ops_.pack(job_, {(first_vector + panels.first(p)) * ops_.lanes, panels.width(p), begin, std::min(steps_, begin + kRun),
                       panel(panels, p)});
    }
  }

  // Once for all panels. A call of one panel has each strip make its own, just before it reads the same weights again.
  void sum_rows(std::int64_t task) {
    const std::int64_t* prefix = job_.cost_prefix;
    const Range mine = units_in_share(prefix, job_.output_blocks, subs_, 0, 1, share(prefix[job_.output_blocks], task, tasks_));
    for (std::int64_t unit = mine.begin; unit < mine.end; ++unit) ops_.sum_rows(job_, unit * kGroup, row_sums_ + unit * kGroup);
  }

  void multiply(const Panels& panels, std::int64_t first_vector, std::int64_t task) {
    const std::int64_t* prefix = job_.cost_prefix;
    const Range mine = share(prefix[job_.output_blocks] * panels.vectors, task, tasks_);
    const auto units_of = [&](std::int64_t p) {
      return units_in_share(prefix, job_.output_blocks, subs_, panels.first(p), panels.width(p), mine);
    };
    for (std::int64_t p = 0; p < panels.count;) {
      const Range units = units_of(p);
      std::int64_t end = p + 1;
      const auto joins = [&](std::int64_t next) {
        const Range others = units_of(next);
        return others.begin == units.begin && others.end == units.end;
      };
      while (end < panels.count && end - p < panels_at_once_ && joins(end)) ++end;
      const std::int64_t last = std::min(units.end, ceil_div(job_.outputs, kGroup));
      for (std::int64_t unit = units.begin, count; unit < last; unit += count) {
        count = std::min(last - unit, together_ - unit % together_);
        for (std::int64_t i = p; i < end; ++i) {
          const int width = panels.width(i);
          const std::int64_t token = (first_vector + panels.first(i)) * ops_.lanes;
          strips_[width](job_, {panel(panels, i), unit * kGroup, token,
                                std::min<std::int64_t>(job_.tokens - token, width * ops_.lanes), i == p, static_cast<int>(count)});
        }
      }
      p = end;
    }
    if (job_.streams) end_streams();
  }

  const PanelOps& ops_;
  const Executor& executor_;
  PanelJob job_;
  std::int64_t steps_, subs_, tasks_ = 1, chunk_ = 0;
  std::int64_t together_ = 1;  // strips whose outputs are written together: a cache line's
  std::int64_t panels_at_once_ = 1;
  float* panels_memory_;
  std::int32_t* row_sums_ = nullptr;
  StripFunction strips_[kMaxVectors + 1] = {};
};

}  // namespace

PanelJob panel_job(const MatmulArgs& args) {
  const IndexView& w = args.index;
  PanelJob job;
  job.dtype = args.dtype;
  job.direction = args.direction;
  job.activation = args.activation;
  job.in = args.a, job.in_stride = args.a_stride, job.tokens = args.m;
  job.out = args.out, job.out_stride = args.out_stride;
  job.bias = args.bias;
  job.residual = args.residual, job.residual_stride = args.residual_stride;
  job.values = args.values;
  job.block_cols = w.block.cols, job.block_elements = w.block_elements();
  job.cost_prefix = args.cost_prefix;
  job.out_dtype = is_scaled(args.dtype) ? args.out_dtype : args.dtype;
  job.token_scale = args.a_scale, job.token_scale_each = args.a_scale_each;
  job.output_scale = args.w_scale, job.output_scale_each = args.w_scale_each;
  if (args.direction == Direction::forward) {
    job.depth = w.cols, job.outputs = w.rows;
    job.output_block = w.block.rows, job.depth_block = w.block.cols;
    job.output_blocks = w.block_rows(), job.depth_blocks = w.block_cols();
    job.offsets = w.crow, job.depth_index = w.col;
  } else {
    job.depth = w.rows, job.outputs = w.cols;
    job.output_block = w.block.cols, job.depth_block = w.block.rows;
    job.output_blocks = w.block_cols(), job.depth_blocks = w.block_rows();
    job.offsets = args.transposed.ccol, job.depth_index = args.transposed.row, job.slot = args.transposed.slot;
  }
  return job;
}

void run_panel(const PanelOps& ops, const MatmulArgs& args, const Executor& executor) {
  const std::int64_t outputs = args.direction == Direction::forward ? args.index.rows : args.index.cols;
  if (args.m > 0 && outputs > 0) PanelRun(ops, args, executor).run();  // depth 0 writes act(bias)
}

std::size_t panel_workspace(int lanes, int depth_step, const Problem& problem) {
  const bool forward = problem.direction == Direction::forward;
  const std::int64_t side = forward ? problem.block.cols : problem.block.rows;
  const std::int64_t steps = round_up(forward ? problem.cols : problem.rows, side) / depth_step;
  std::int64_t bytes = round_up(chunk_vectors(problem.m, steps, lanes) * lanes * steps * kCellBytes, kAlign);
  if (depth_step == 4) bytes += round_up(problem.rows, problem.block.rows) * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (!forward && depth_step == 2) bytes += problem.blocks * problem.block.rows * problem.block.cols * 2;
  return static_cast<std::size_t>(bytes);
}

}  // namespace sparseloom::kernels::cpu
