// Forward and dx of the panel kernels on a matrix, and the transposed blocks that some of them need.
#include "kernels/bsr_linear/cpu/panel.h"

#include "kernels/bsr_linear/cpu/panel_run.h"

namespace sparseloom::kernels::cpu {
namespace {

struct MatrixSource {
  static constexpr bool kPlaces = false;
  void pack(const PanelOps& ops, const PanelJob& job, const Pack& pack) const { ops.pack(job, pack); }
};

Problem problem_of(const MatmulArgs& args) {
  Problem problem;
  problem.direction = args.direction, problem.dtype = args.dtype;
  problem.m = args.m, problem.rows = args.index.rows, problem.cols = args.index.cols;
  problem.block = args.index.block, problem.blocks = args.index.blocks;
  return problem;
}

}  // namespace

bool outgrows_l2(const PanelJob& job, std::int64_t tasks) {
  return job.tokens * job.outputs * static_cast<std::int64_t>(size_of(job.out_dtype)) >
         tasks * runtime::l2_cache_bytes();
}

bool passes_caches(const MatmulArgs& args, const PanelJob& job, std::int64_t tasks) {
  const std::int64_t values = args.index.blocks * args.index.block_elements();
  const std::int64_t bytes =
      (job.tokens * job.depth + values) * static_cast<std::int64_t>(size_of(job.dtype)) +
      job.tokens * job.outputs * static_cast<std::int64_t>(size_of(job.out_dtype));
  return outgrows_l2(job, tasks) && bytes > kKeptBytes;
}

TransposedValues::TransposedValues(TransposeFunction transpose, const MatmulArgs& args, std::int64_t tasks,
                                   std::uint16_t* out, PanelJob& job)
    : transpose_(transpose),
      args_(args),
      items_(tasks == 1 ? 1 : kPartsOfTask * tasks),
      out_(out),
      phase_(items_) {
  job.values = out, job.slot = nullptr, job.block_cols = job.depth_block;
}

void TransposedValues::work() {
  phase_.work([this](std::int64_t item) {
    const Range blocks = share(args_.index.blocks, item, items_);
    transpose_(static_cast<const std::uint16_t*>(args_.values), args_.transposed.slot, args_.index.block,
               blocks.begin, blocks.end, out_);
  });
}

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
  job.out_dtype = is_scaled(args.dtype) ? args.out_dtype : args.dtype;
  job.token_scale = args.a_scale, job.token_scale_each = args.a_scale_each;
  job.output_scale = args.w_scale, job.output_scale_each = args.w_scale_each;
  if (args.direction == Direction::forward) {
    job.depth = w.cols, job.outputs = w.rows;
    job.output_block = w.block.rows, job.depth_block = w.block.cols;
    job.output_blocks = w.block_rows(), job.depth_blocks = w.block_cols();
    job.begin = w.crow, job.end = w.crow + 1, job.depth_index = w.col;
  } else {
    job.depth = w.rows, job.outputs = w.cols;
    job.output_block = w.block.cols, job.depth_block = w.block.rows;
    job.output_blocks = w.block_cols(), job.depth_blocks = w.block_rows();
    job.begin = args.transposed.ccol, job.end = job.begin + 1, job.depth_index = args.transposed.row,
    job.slot = args.transposed.slot;
  }
  return job;
}

void run_panel(const PanelOps& ops, const MatmulArgs& args, const Executor& executor) {
  const std::int64_t outputs = args.direction == Direction::forward ? args.index.rows : args.index.cols;
  if (args.m == 0 || outputs == 0) return;
  ops.runs->add();
  PanelRun<MatrixSource> run(ops, args, problem_of(args), {}, executor);  // with depth 0 it writes act(bias)
  run.begin();
  runtime::parallel_tasks(executor, run.tasks(), [&](std::int64_t task) {
    DeferredLines lines;
    run.work(task, lines);
    lines.finish();
  });
}

}  // namespace sparseloom::kernels::cpu
