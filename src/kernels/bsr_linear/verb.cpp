// The verb bsr_linear: its key, and the proposal of a row.
#include "kernels/bsr_linear/verb.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/registry.h"

namespace sparseloom::kernels::bsr_linear {
namespace {

std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }

double predicted_us(const plan::KernelInfo& row, const Problem& problem, const plan::Machine& machine) {
  return row.outside != nullptr ? row.outside->predict_us(&problem) : row.predict_us(problem, machine);
}

std::size_t workspace_of(const plan::KernelInfo& row, const Problem& problem, const plan::Machine& machine) {
  if (row.outside == nullptr) return row.workspace_bytes(problem, machine);
  return row.outside->workspace_bytes != nullptr ? row.outside->workspace_bytes(&problem) : 0;
}

std::string propose(const void* typed, const void* asked, const plan::Machine& machine, plan::Offer& out) {
  const plan::KernelInfo& row = static_cast<const Kernel*>(typed)->info;
  const auto& problem = *static_cast<const Problem*>(asked);
  if (std::string why = refusal_of(row, problem, machine); !why.empty()) return why;
  Proposals<Linear> proposals(out);
  if (is_scaled(problem.dtype) && row.scaled_by_name)
    proposals.only_by_name(
        {"multiplies {} a thousand times slower than a fast kernel, so only by name: kernel={}",
         name_of(problem.dtype), row.name});
  Linear::Schedule schedule;
  if (problem.direction != Direction::dw && row.block_row_groups != nullptr)
    schedule.groups = row.block_row_groups(problem, machine);
  proposals.add({schedule, predicted_us(row, problem, machine), workspace_of(row, problem, machine)});
  return {};
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
  row.schedule_size = sizeof(Linear::Schedule);
  row.verb = Linear::kName;
  row.typed = &kernel;
  row.name = kernel.info.name;
  row.caveat = kernel.info.caveat;
  row.where = kernel.info.side == plan::Side::cpu    ? Placement::cpu
              : kernel.info.side == plan::Side::cuda ? Placement::cuda
                                                     : Placement::any;
  row.propose = propose;
  return row;
}

std::string refusal_of(const plan::KernelInfo& row, const Problem& problem, const plan::Machine& machine) {
  if (is_scaled(problem.dtype) && !row.scaled)
    return std::string("multiplies no 8-bit operands, the dtype is ") + name_of(problem.dtype);
  const plan::Aligned needs = alignment_of(row, problem);
  if ((needs != plan::Aligned::none && !problem.aligned) ||
      (needs == plan::Aligned::all && !problem.out_aligned))
    return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  if (row.outside == nullptr) return row.refusal(problem, machine);
  const char* const why = row.outside->refusal(&problem);
  return why != nullptr ? why : "";
}

plan::Aligned alignment_of(const plan::KernelInfo& row, const Problem& problem) {
  return row.needs_aligned != nullptr ? row.needs_aligned(problem) : plan::Aligned::none;
}

double fastest_us(const Problem& problem, const plan::Machine& machine) {
  double best = std::numeric_limits<double>::infinity();
  for (const plan::KernelInfo& row : registry_info())
    if (row.side != plan::Side::cuda && refusal_of(row, problem, machine).empty())
      best = std::min(best, predicted_us(row, problem, machine));
  return best;
}

}  // namespace sparseloom::kernels::bsr_linear
