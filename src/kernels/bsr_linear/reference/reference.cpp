// The reference row of BSR: the generic products over layout::Bsr.
#include "kernels/bsr_linear/reference/reference.h"

#include "kernels/runs.h"
#include "layout/bsr.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

constinit Runs runs{"reference"};

int launch(const MatmulArgs& args, const Schedule&, const Executor& executor) {
  runs.add();
  using layout::Bsr;
  switch (args.direction) {
    case Direction::forward: generic::forward<Bsr>(args, args.index, executor); break;
    case Direction::dx: generic::dx<Bsr>(args, args.index, args.transposed, executor); break;
    case Direction::dw: generic::dw<Bsr>(args, args.index, executor); break;
  }
  return 0;
}

// `strict` refuses this kernel for fp64 too, although no other kernel takes fp64: it is slow, and a caller
// sets `strict` to learn of slow choices.
Refusal propose(const Problem& p, const plan::Machine&, Proposals<Linear>& out) {
  if (p.strict) return "strict forbids the reference kernel";
  // An element of dw takes as long as three products to find and to write: measured 3 to 4 ns at one token.
  const double each = static_cast<double>(p.m) + (p.direction == Direction::dw ? 3 : 0);
  const double madds = each * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  out.add({{}, generic::predict_reference_us(madds, p.threads), 0});
  return {};
}

}  // namespace

Kernel reference_kernel() {
  Kernel row{{"reference", Placement::cpu, propose, launch}};
  row.scaled = row.scaled_by_name = true;
  return row;
}

}  // namespace sparseloom::kernels
