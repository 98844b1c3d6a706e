// One product of the panel kernels, forward or dX: a chunk of tokens is packed into micro-panels, then the
// strips run over them. Source provides the tokens and stores the outputs: a matrix's rows (panel.cpp), or
// the pixels under a convolution's taps (bsr_conv/cpu).
#pragma once

#include <algorithm>
#include <new>
#include <optional>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "kernels/bsr_linear/cpu/panel_memory.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {

inline constexpr std::int64_t kPanelLineBytes = 64;
inline constexpr std::int64_t kPackSteps = 256;  // steps of a panel in one work item
// Work items of a group of panels per task that may work on it. 2 or 4 measured slower with several K tiles:
// all partial sums of an item pass between them, and larger items have more.
inline constexpr std::int64_t kPartsOfGroup = 8;
// Work items that a task needs to find enough of them where strips are written together: whole lines save .18
// of 2048 x 384 to 384, but four strips of one item are a quarter of the items.
inline constexpr std::int64_t kItemsOfTask = 4;
// The fraction of L2 for a group: panels over which a strip of weights runs one after the other, so that it
// comes from DRAM once for all of them. The rest is for two strips of weights. 800 KB of a Zen 4's 1 MiB.
inline constexpr double kPanelsInL2 = 0.78;

// Divides `vectors` vectors into panels of at most three, as evenly as possible: 4 are 2 + 2, since a panel
// of one vector gets too few products from each broadcast.
struct PanelCut {
  std::int64_t vectors, count;
  explicit PanelCut(std::int64_t n) : vectors(n), count(core::ceil_div(n, kMaxVectors)) {}
  std::int64_t first(std::int64_t panel) const {
    return vectors / count * panel + std::min(panel, vectors % count);
  }
  int width(std::int64_t panel) const { return static_cast<int>(first(panel + 1) - first(panel)); }
};

/// Outputs [output, output_end) of `tokens` tokens from `token` on, in rows row_bytes apart.
struct Placed {
  std::int64_t token, tokens, output, output_end;
  const std::byte* rows;
  std::int64_t row_bytes;
};

/// Source, which a run copies:
///   void pack(const PanelOps&, const PanelJob&, const Pack&) const      fills a share of a panel
///   void complete(PanelJob&) const       optional: what the job of the arguments lacks
///   static constexpr bool kPlaces        whether outputs are stored elsewhere than in the job's rows;
///   then void place(const Placed&) const      stores a strip's outputs there
template <class Source>
class PanelRun {
 public:
  PanelRun(const PanelOps& ops, const MatmulArgs& args, const Problem& problem, const Source& source,
           const Executor& executor, std::int64_t chunk_bytes = kPanelChunkBytes)
      : ops_(ops),
        source_(source),
        job_(job_of(args, source)),
        costs_(args),
        memory_(ops, problem, chunk_bytes),
        subs_(job_.output_block / kGroup),
        workspace_(args.workspace),
        stages_(in_workspace<Stage>(memory_.stages)) {
    const double products =
        static_cast<double>(args.m) * static_cast<double>(args.index.blocks * args.index.block_elements()) +
        static_cast<double>(args.m) * static_cast<double>(job_.depth + job_.outputs);
    tasks_ = tasks_of(products / kTaskProducts, executor);
    for (int v = 1; v <= kMaxVectors; ++v) strips_[v] = ops.strip(job_.dtype, job_.direction, v);
    const auto room = static_cast<std::int64_t>(kPanelsInL2 * static_cast<double>(runtime::l2_cache_bytes()));
    panels_at_once_ = std::max<std::int64_t>(1, room / std::max<std::int64_t>(1, memory_.panel_bytes));
    // A chunk has no more panels than the threads multiply at once, so that each thread finds its own packed
    // panels in L2. Measured faster at low densities.
    chunk_ = std::min(memory_.vectors,
                      even_chunk(core::ceil_div(args.m, ops.lanes), tasks_ * panels_at_once_ * kMaxVectors));
    const auto out_size = static_cast<std::int64_t>(size_of(job_.out_dtype));
    streams_ = passes_caches(args, job_, tasks_);
    const std::int64_t in_a_line =
        std::clamp<std::int64_t>(kPanelLineBytes / (kGroup * out_size), 1, kMostStrips);
    const std::int64_t groups = groups_of(PanelCut(core::ceil_div(args.m, ops.lanes)));
    if (streams_ || job_.output_blocks * subs_ * groups >= in_a_line * kItemsOfTask * tasks_)
      together_ = in_a_line;
    if (args.direction == Direction::dx && ops.transpose != nullptr)
      transposed_.emplace(ops.transpose, args, tasks_, in_workspace<std::uint16_t>(memory_.cells), job_);
    if (ops.sum_rows != nullptr && core::ceil_div(args.m, ops.lanes) > kMaxVectors) {
      row_sums_ = in_workspace<std::int32_t>(memory_.row_sums);
      job_.row_sums = row_sums_;
      row_summing_.emplace(parts());
    }
    if (memory_.k_tiles > 1) cut_lists(in_workspace<std::int32_t>(memory_.cuts));
  }

  std::int64_t tasks() const { return tasks_; }

  /// Before the parallel region.
  void begin() {
    const std::int64_t vectors = core::ceil_div(job_.tokens, ops_.lanes);
    Stage* stage = stages_;
    for (std::int64_t first = 0; first < vectors; first += chunk_) {
      const PanelCut panels(std::min(chunk_, vectors - first));
      const std::int64_t groups = groups_of(panels);
      for (std::int64_t g = 0; g < groups; ++g, ++stage) {
        const Range group_panels = share(panels.count, g, groups);
        new (stage)
            Stage{Phase((group_panels.end - group_panels.begin) * pack_runs()), Phase(parts_of(groups))};
      }
    }
  }

  /// In the region, by each task. `lines`: the task's own.
  void work(std::int64_t task, DeferredLines& lines) {
    const std::int64_t vectors = core::ceil_div(job_.tokens, ops_.lanes);
    for (std::int64_t first = 0; first < vectors; first += chunk_)
      run_chunk(PanelCut(std::min(chunk_, vectors - first)), first, task, lines);
  }

 private:
  static PanelJob job_of(const MatmulArgs& args, const Source& source) {
    PanelJob job = panel_job(args);
    if constexpr (requires { source.complete(job); }) source.complete(job);
    return job;
  }
  std::int64_t groups_of(const PanelCut& panels) const {
    return core::ceil_div(panels.count, panels_at_once_);
  }
  // Work items of packing a panel, so that all threads can help to pack even a single one.
  std::int64_t pack_runs() const { return core::ceil_div(memory_.steps, kPackSteps); }
  // Work items of a group's products.
  std::int64_t parts_of(std::int64_t groups) const {
    return tasks_ == 1 ? 1 : kPartsOfGroup * core::ceil_div(tasks_, std::min(groups, tasks_));
  }
  std::int64_t parts() const { return tasks_ == 1 ? 1 : kPartsOfTask * tasks_; }

  template <class T>
  T* in_workspace(std::int64_t at) const {
    return reinterpret_cast<T*>(workspace_ + at);
  }
  float* panel(const PanelCut& panels, std::int64_t p) const {
    return in_workspace<float>(0) + panels.first(p) * ops_.lanes * memory_.steps;
  }
  float* sums(const PanelCut& panels, std::int64_t p, std::int64_t unit) const {
    const std::int64_t outputs = job_.output_blocks * job_.output_block;
    return in_workspace<float>(memory_.sums) +
           (panels.first(p) * outputs + unit * kGroup * panels.width(p)) * ops_.lanes;
  }

  // Finds where the K tiles cut each list. Lists ascend, so each K tile's range of a list is contiguous.
  void cut_lists(std::int32_t* cuts) {
    cuts_ = cuts;
    for (std::int64_t k_tile = 0; k_tile <= memory_.k_tiles; ++k_tile) {
      const std::int64_t from = job_.depth_blocks * k_tile / memory_.k_tiles;
      for (std::int64_t b = 0; b < job_.output_blocks; ++b) {
        const std::int32_t* const cut =
            std::lower_bound(job_.depth_index + job_.begin[b], job_.depth_index + job_.end[b], from);
        *cuts++ = static_cast<std::int32_t>(cut - job_.depth_index);
      }
    }
  }

  PanelJob k_tile_job(std::int64_t k_tile) const {
    PanelJob job = job_;
    if (cuts_ != nullptr)
      job.begin = cuts_ + k_tile * job_.output_blocks, job.end = job.begin + job_.output_blocks;
    return job;
  }

  // Packs a chunk of tokens, then multiplies it by all weights. Panels are multiplied in groups that fit into
  // L2, and the outputs of a group in work items of equal cost. A task begins with a group of its own, which
  // is still in its L2, and continues with work items that the others have left.
  void run_chunk(const PanelCut& panels, std::int64_t first_vector, std::int64_t task, DeferredLines& lines) {
    const std::int64_t groups = groups_of(panels), before = groups_of(PanelCut(chunk_));
    Stage* const stages = stages_ + first_vector / chunk_ * before;
    const auto each_group = [&](const auto& body) {
      for (std::int64_t i = 0; i < groups; ++i) {
        const std::int64_t g = (task * groups / tasks_ + i) % groups;
        body(stages[g], share(panels.count, g, groups));
      }
    };
    // The previous chunk's panels are read until its last product.
    for (std::int64_t i = 1; first_vector > 0 && i <= before; ++i) stages[-i].products.wait();
    each_group([&](Stage& stage, Range together) {
      stage.packing.work([&](std::int64_t item) { pack(panels, together, first_vector, item); });
    });
    if (first_vector == 0) prepare_weights();
    each_group([&](Stage& stage, Range together) {
      stage.packing.wait();
      const std::int64_t parts = parts_of(groups);
      stage.products.work([&](std::int64_t part) {
        const Range units = units_of_part(costs_, job_.output_blocks, subs_, part, parts, together_);
        for (std::int64_t k_tile = 0; k_tile < memory_.k_tiles; ++k_tile)
          multiply_k_tile(panels, together, units, first_vector, k_tile, streams_ ? &lines : nullptr);
      });
    });
  }

  void pack(const PanelCut& panels, Range together, std::int64_t first_vector, std::int64_t item) {
    const std::int64_t p = together.begin + item / pack_runs(), begin = item % pack_runs() * kPackSteps;
    source_.pack(ops_, job_,
                 {(first_vector + panels.first(p)) * ops_.lanes, panels.width(p), begin,
                  std::min(memory_.steps, begin + kPackSteps), panel(panels, p)});
  }

  // Prepares the weights: transposed blocks, or row sums, which are computed once for all panels. In a call
  // of one panel each strip computes its own sums instead, from weights that it has just read.
  void prepare_weights() {
    if (transposed_) transposed_->work();
    if (row_summing_)
      row_summing_->work([&](std::int64_t part) {
        const Range units = units_of_part(costs_, job_.output_blocks, subs_, part, parts());
        for (std::int64_t unit = units.begin; unit < units.end; ++unit)
          ops_.sum_rows(job_, unit * kGroup, row_sums_ + unit * kGroup);
      });
    if (transposed_) transposed_->wait();
    if (row_summing_) row_summing_->wait();
  }

  // Multiplies one K tile: the strips of `units` with each panel of the group `together`.
  void multiply_k_tile(const PanelCut& panels, Range together, Range units, std::int64_t first_vector,
                       std::int64_t k_tile, DeferredLines* leaving) {
    PanelJob job = k_tile_job(k_tile);
    const std::int64_t last = std::min(units.end, core::ceil_div(job.outputs, kGroup));
    for (std::int64_t unit = units.begin, count; unit < last; unit += count) {
      count = std::min(last - unit, together_ - unit % together_);
      for (std::int64_t p = together.begin; p < together.end; ++p) {
        const int width = panels.width(p);
        Strip strip;
        strip.panel = panel(panels, p);
        strip.output = unit * kGroup;
        strip.token = (first_vector + panels.first(p)) * ops_.lanes;
        strip.tokens = std::min<std::int64_t>(job.tokens - strip.token, width * ops_.lanes);
        if (memory_.k_tiles > 1) strip.sums = sums(panels, p, unit);
        strip.begins = k_tile == 0;
        strip.ends = k_tile + 1 == memory_.k_tiles;
        strip.leads = p == together.begin;
        strip.leaving = leaving;
        strip.count = static_cast<int>(count);
        if constexpr (Source::kPlaces) {
          place(job, strip);
        } else {
          strips_[width](job, strip);
        }
      }
    }
  }

  // The strips' outputs pass through a tile on the stack.
  void place(PanelJob& job, Strip& strip) const {
    constexpr std::int64_t kOutputs = kMostStrips * kGroup;
    alignas(64) std::byte tile[kMaxVectors * kMaxLanes * kOutputs * sizeof(float)];
    const auto size = static_cast<std::int64_t>(size_of(job.out_dtype));
    const std::int64_t token = strip.token, end = std::min(job.outputs, strip.output + strip.count * kGroup);
    // Element (0, 0) lies before the tile, so that the strip's first output is its first element.
    job.out = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tile) -
                                      static_cast<std::uintptr_t>(strip.output * size));
    job.out_stride = kOutputs;
    strip.token = 0, strip.leaving = nullptr;
    strips_[core::ceil_div(strip.tokens, ops_.lanes)](job, strip);
    if (strip.ends) source_.place({token, strip.tokens, strip.output, end, tile, kOutputs * size});
  }

  const PanelOps& ops_;
  Source source_;
  PanelJob job_;
  RunningCosts costs_;
  PanelMemory memory_;
  std::int64_t subs_, tasks_ = 1, chunk_ = 0;
  std::int64_t together_ = 1;        // strips written together: as many as fill a cache line
  std::int64_t panels_at_once_ = 1;  // panels per group
  bool streams_ = false;             // outputs are stored past the caches
  std::byte* workspace_;
  Stage* stages_;  // stages of all chunks
  std::optional<TransposedValues> transposed_;
  std::optional<Phase> row_summing_;
  const std::int32_t* cuts_ = nullptr;
  std::int32_t* row_sums_ = nullptr;
  StripFunction strips_[kMaxVectors + 1] = {};
};

}  // namespace sparseloom::kernels::cpu
