// The reference row of BSR: the generic products over layout::Bsr.
#include "kernels/bsr_linear/reference/reference.h"

#include "layout/bsr.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

int launch(const MatmulArgs& args, const Executor& executor) {
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
std::string refusal(const Problem& problem, const plan::Machine&) {
  if (problem.strict) return "strict forbids the reference kernel";
  return {};
}

double predict_us(const Problem& p, const plan::Machine&) {
  const double madds = static_cast<double>(p.m) * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  return generic::predict_reference_us(madds, p.threads);
}

std::size_t workspace_bytes(const Problem&, const plan::Machine&) { return 0; }

}  // namespace

Kernel reference_kernel() {
  return {
      {"reference", plan::Side::cpu, runtime::Isa::generic, refusal, predict_us, workspace_bytes, true, true},
      launch};
}

}  // namespace sparseloom::kernels
