// The verb bsr_linear: its key, and what a row answers to a problem.
#include "kernels/bsr_linear/verb.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/registry.h"

namespace sparseloom::kernels::bsr_linear {
namespace {

std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }

// What the family refuses for a row.
Refusal refuse_operands(const Kernel& kernel, const Problem& problem) {
  if (is_scaled(problem.dtype) && !kernel.scaled)
    return {"multiplies no 8-bit operands, the dtype is {}", name_of(problem.dtype)};
  const Aligned needs = alignment_of(kernel, problem);
  if ((needs != Aligned::none && !problem.aligned) || (needs == Aligned::all && !problem.out_aligned))
    return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  return {};
}

// A kernel from outside words its refusals itself.
std::string propose_outside(const SparseloomKernel& kernel, const Problem& problem,
                            Proposals<Linear>& proposals) {
  if (const char* const why = kernel.refusal(&problem)) return why;
  proposals.add({{},
                 kernel.predict_us(&problem),
                 kernel.workspace_bytes != nullptr ? kernel.workspace_bytes(&problem) : 0});
  return {};
}

std::string propose(const void* typed, const void* asked, const plan::Machine& machine, plan::Offer& out) {
  const Kernel& kernel = *static_cast<const Kernel*>(typed);
  const auto& problem = *static_cast<const Problem*>(asked);
  if (const Refusal why = refuse_operands(kernel, problem)) return why.text();
  Proposals<Linear> proposals(out);
  if (is_scaled(problem.dtype) && kernel.scaled_by_name)
    proposals.only_by_name(
        {"multiplies {} a thousand times slower than a fast kernel, so only by name: kernel={}",
         name_of(problem.dtype), kernel.name});
  if (kernel.outside != nullptr) return propose_outside(*kernel.outside, problem, proposals);
  return kernel.propose(problem, machine, proposals).text();
}

}  // namespace

ProblemKey Linear::key(const Problem& p) {
  const std::uint64_t flags = word(p.aligned) | word(p.out_aligned) << 1 | word(p.bias) << 2 |
                              word(p.residual) << 3 | word(p.accumulate) << 4 | word(p.can_gemm) << 5 |
                              word(p.tf32) << 6 | word(p.fast_accum) << 7 | word(p.strict) << 8;
  const std::uint64_t codes =
      static_cast<std::uint64_t>(p.direction) | static_cast<std::uint64_t>(p.dtype) << 8 |
      static_cast<std::uint64_t>(p.out) << 16 | static_cast<std::uint64_t>(p.activation) << 24 | flags << 32;
  return {word(p.m),
          word(p.rows),
          word(p.cols),
          word(p.blocks),
          word(p.block.rows) << 32 | word(p.block.cols),
          word(p.facts.digest()),
          word(p.threads) << 32 | static_cast<std::uint32_t>(p.device),
          codes};
}

plan::AnyRow any_row(const Kernel& kernel) {
  plan::AnyRow row;
  row.problem_size = sizeof(Problem), row.args_size = sizeof(MatmulArgs);
  row.schedule_size = sizeof(Schedule);
  row.verb = Linear::kName;
  row.typed = &kernel;
  row.name = kernel.name;
  row.caveat = kernel.caveat;
  row.where = kernel.where;
  row.propose = propose;
  return row;
}

Answer ask(const Kernel& kernel, const Problem& problem, const plan::Machine& machine) {
  plan::Offer offer;
  Answer answer;
  answer.refusal = propose(&kernel, &problem, machine, offer);
  if (!answer.refusal.empty()) return answer;
  std::memcpy(&answer.schedule, offer.schedule, sizeof answer.schedule);
  answer.predicted_us = offer.predicted_us;
  answer.workspace_bytes = offer.workspace_bytes;
  return answer;
}

Aligned alignment_of(const Kernel& kernel, const Problem& problem) {
  return kernel.needs_aligned != nullptr ? kernel.needs_aligned(problem) : Aligned::none;
}

double fastest_us(const Problem& problem, const plan::Machine& machine) {
  double best = std::numeric_limits<double>::infinity();
  for (const Kernel& kernel : registry()) {
    if (kernel.where == Placement::cuda) continue;
    if (const Answer answer = ask(kernel, problem, machine); answer.refusal.empty())
      best = std::min(best, answer.predicted_us);
  }
  return best;
}

}  // namespace sparseloom::kernels::bsr_linear
