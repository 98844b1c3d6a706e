// The reference rows of BSR: the generic products over layout::Bsr.
#include "sparseloom/generic/reference.h"

#include "kernels/bsr_linear/rows.h"
#include "kernels/runs.h"
#include "layout/bsr.h"

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

// Products per element, beside one per token. Finding and writing an element of dw takes as long as three: 3
// to 4 ns at one token (measured).
double beside_tokens(const Problem& p) { return p.direction == Direction::dw ? 3 : 0; }
double beside_tokens(const ScaledProblem&) { return 0; }

// `strict` refuses this kernel for fp64 too, although no other kernel supports fp64: it is slow, and a caller
// sets `strict` to learn of slow choices.
template <class V>
Refusal propose(const typename V::Problem& p, const plan::Machine&, Proposals<V>& out) {
  if (p.strict) return "strict forbids the reference kernel";
  const double madds_per_weight = static_cast<double>(p.m) + beside_tokens(p);
  const double madds = madds_per_weight * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  out.add({{}, generic::predict_reference_us(madds, p.threads), 0});
  return {};
}

Refusal propose_scaled(const ScaledProblem& p, const plan::Machine& machine, Proposals<Scaled>& out) {
  out.only_by_name(
      {"multiplies {} a thousand times slower than a fast kernel, so only by name: kernel=reference",
       name_of(p.dtype)});
  return propose<Scaled>(p, machine, out);
}

}  // namespace

Kernel reference_kernel() { return {{"reference", Placement::cpu, propose<Linear>, launch}}; }
ScaledKernel scaled_reference_kernel() { return {{"reference", Placement::cpu, propose_scaled, launch}}; }

}  // namespace sparseloom::kernels
