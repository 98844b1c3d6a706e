// Choosing a kernel: asks every row, keeps refusals and predictions, picks the fastest.
#include "plan/select.h"

#include "core/check.h"

namespace sparseloom::plan {
namespace {

std::string refusals(const Plan& plan) {
  std::string text;
  for (const Candidate& c : plan.candidates)
    if (!c.refusal.empty()) text += (text.empty() ? "" : "; ") + c.kernel + ": " + c.refusal;
  return text;
}

// The refusal that every row of the other side would have to give.
std::string refuse_side(const Problem& problem, Side side) {
  const bool on_cuda = problem.device >= 0;
  if (side == Side::cpu && on_cuda)
    return "runs on the CPU, the operands are on cuda:" + std::to_string(problem.device);
  if (side == Side::cuda && !on_cuda) return "runs on CUDA devices, the operands are on the CPU";
  return {};
}

}  // namespace

std::string refusal_of(const KernelInfo& row, const Problem& problem, const Machine& machine,
                       const std::string& forced) {
  if (std::string why = refuse_side(problem, row.side); !why.empty()) return why;
  if (is_scaled(problem.dtype) && !row.scaled)
    return std::string("multiplies no 8-bit operands, the dtype is ") + name_of(problem.dtype);
  const Aligned needs = alignment_of(row, problem);
  if ((needs != Aligned::none && !problem.aligned) || (needs == Aligned::all && !problem.out_aligned))
    return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  if (row.outside != nullptr) {
    const char* const why = row.outside->refusal(&problem);
    return why != nullptr ? why : "";
  }
  std::string why = row.refusal(problem, machine);
  if (why.empty() && is_scaled(problem.dtype) && row.scaled_by_name && forced != row.name)
    why = std::string("multiplies ") + name_of(problem.dtype) +
          " a thousand times slower than a fast kernel, so only by name: kernel=" + row.name;
  return why;
}

Aligned alignment_of(const KernelInfo& row, const Problem& problem) {
  return row.needs_aligned != nullptr ? row.needs_aligned(problem) : Aligned::none;
}

double predicted_us(const KernelInfo& row, const Problem& problem, const Machine& machine) {
  return row.outside != nullptr ? row.outside->predict_us(&problem) : row.predict_us(problem, machine);
}

std::size_t workspace_of(const KernelInfo& row, const Problem& problem, const Machine& machine) {
  if (row.outside == nullptr) return row.workspace_bytes(problem, machine);
  return row.outside->workspace_bytes != nullptr ? row.outside->workspace_bytes(&problem) : 0;
}

Plan select(const Problem& problem, std::span<const KernelInfo> rows, const Machine& machine,
            const std::string& forced) {
  Plan plan;
  plan.problem = problem;
  for (const KernelInfo& row : rows) {
    Candidate candidate{row.name, refusal_of(row, problem, machine, forced), 0};
    if (candidate.refusal.empty()) {
      candidate.predicted_us = predicted_us(row, problem, machine);
      const bool wanted = forced.empty() ? plan.kernel < 0 || candidate.predicted_us <
                                                                  plan.candidates[plan.kernel].predicted_us
                                         : forced == row.name;
      if (wanted) plan.kernel = static_cast<int>(plan.candidates.size());
    }
    plan.candidates.push_back(std::move(candidate));
  }
  if (plan.kernel < 0) {
    const std::string wanted = forced.empty() ? "a kernel" : "kernel '" + forced + "'";
    const std::string said = refusals(plan);
    core::fail("plan", wanted + " that supports " + to_string(problem),
               said.empty() ? "no such candidate" : "refusals: " + said,
               forced.empty() && problem.strict ? "pass strict=False, or change what the refusals name"
                                                : "change what the refusals name");
  }
  const KernelInfo& chosen = rows[plan.kernel];
  plan.kernel_name = chosen.name;
  if (chosen.caveat != nullptr) plan.caveat = chosen.caveat;
  plan.workspace_bytes = workspace_of(chosen, problem, machine);
  return plan;
}

}  // namespace sparseloom::plan
