// The row of sm80_decode.
#include <algorithm>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode/row_parts.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const Bytes bytes = bytes_of(p);
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  // Share of the memory's rate. Narrow blocks spend their time on the tokens' fragments.
  const double share = side >= 32 ? (p.m <= 16 ? 0.9 : 0.82) : side == 16 ? (p.m <= 16 ? 0.42 : 0.32) : 0.1;
  const double ffma = p.dtype == DType::f32 && !p.tf32
                          ? useful_flops(p, static_cast<double>(p.m)) / (kFfmaFlops * device.clocks())
                          : 0;
  const double few = p.direction == Direction::dx ? 1.3 : 1;
  // The warps of the longest block row end last: at least this many times later than the mean.
  const double longest = p.direction == Direction::forward && p.facts.uneven_rows ? 1.5 : 1;
  return kLaunchUs + 0.8 +
         few * longest * us(std::max(memory_seconds(bytes.stored / share + bytes.tokens, device), ffma));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refuse_decode(p, machine)) return why;
  out.add({{}, predict_us(p, machine), 0});
  return {};
}

}  // namespace

Refusal refuse_decode(const Problem& p, const plan::Machine&) {
  if (p.direction == Direction::dw) return "does forward and dx only: dw reads both operands whole";
  if (p.m == 0) return "takes at least one token";
  if (p.m > kDecodeTokens) return {"takes at most {} tokens, the call has {}", kDecodeTokens, p.m};
  return {};
}

Kernel sm80_decode_row() {
  return cuda_row("sm80_decode", propose,
                  [](const MatmulArgs& args, const Schedule&, const Executor&) { return sm80_decode(args); });
}

}  // namespace sparseloom::kernels::cuda

#endif
