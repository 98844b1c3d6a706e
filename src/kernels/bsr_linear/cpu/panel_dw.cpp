// dW of the panel kernels on a matrix.
#if defined(__x86_64__)  // write_run is AVX2 code

#include "kernels/bsr_linear/cpu/panel_dw_run.h"

namespace sparseloom::kernels::cpu {
namespace {

/// X as a matrix.
struct MatrixColumns {
  void pack(const PanelOps& ops, const MatmulArgs& args, const ColumnShare& share) const {
    const auto size = static_cast<std::int64_t>(size_of(args.dtype));
    ops.pack_columns(args.dtype, {static_cast<const char*>(args.b) + share.token * args.b_stride * size,
                                  args.b_stride, args.index.cols, share.tokens, share.piece, share.steps,
                                  share.begin, share.end, share.out});
  }
  std::int64_t valid(const IndexView& w, std::int64_t block_column) const {
    return w.cols - block_column * w.block.cols;
  }
  std::int64_t alike() const { return 1; }
};

}  // namespace

void run_panel_dw(const PanelOps& ops, const MatmulArgs& args, const Executor& executor) {
  if (args.index.blocks == 0) return;
  ops.runs->add();
  OuterRun<MatrixColumns>(ops, args, {}, executor).run();
}

std::size_t panel_dw_workspace(int depth_step, const Problem& problem) {
  return outer_workspace(depth_step, problem, kOuterBytes);
}

}  // namespace sparseloom::kernels::cpu

#endif
