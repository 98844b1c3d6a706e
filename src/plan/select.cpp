// Choosing a row: asks every row of the verb, keeps refusals and predictions, picks the fastest.
#include <utility>

#include "core/check.h"
#include "plan/registry.h"
#include "sparseloom/verb.h"

namespace sparseloom::plan {
namespace {

std::string refusals(const Choice& choice) {
  std::string text;
  for (const Candidate& c : choice.candidates)
    if (!c.refusal.empty()) text += (text.empty() ? "" : "; ") + c.kernel + ": " + c.refusal;
  return text;
}

// The refusal that every row of the other side would have to give.
std::string refuse_place(const AnyProblem& problem, Placement where) {
  const bool on_cuda = problem.device >= 0;
  if (where == Placement::cpu && on_cuda)
    return "runs on the CPU, the operands are on cuda:" + std::to_string(problem.device);
  if (where == Placement::cuda && !on_cuda) return "runs on CUDA devices, the operands are on the CPU";
  return {};
}

Candidate judge(const AnyRow& row, const AnyProblem& problem, const Machine& machine, bool named,
                Offer& offer) {
  Candidate candidate{row.name, refuse_place(problem, row.where), 0};
  if (!candidate.refusal.empty()) return candidate;
  candidate.refusal = row.propose(row.typed, problem.problem, machine, offer);
  if (candidate.refusal.empty() && !offer.made) candidate.refusal = "proposes nothing";
  if (candidate.refusal.empty() && !named) candidate.refusal = offer.unless_named;
  if (candidate.refusal.empty()) candidate.predicted_us = offer.predicted_us;
  return candidate;
}

}  // namespace

Selected select(const AnyProblem& problem, const Machine& machine, std::string_view forced) {
  Selected selected;
  Choice& choice = selected.choice;
  for (const AnyRow& row : rows_of(problem.verb)) {
    Offer offer;
    const bool named = forced == row.name;
    Candidate candidate = judge(row, problem, machine, named, offer);
    const bool wanted =
        forced.empty() ? choice.kernel < 0 || candidate.predicted_us < choice.predicted_us : named;
    if (candidate.refusal.empty() && wanted) {
      choice.kernel = static_cast<int>(choice.candidates.size());
      choice.kernel_name = row.name;
      choice.predicted_us = offer.predicted_us;
      choice.workspace_bytes = offer.workspace_bytes;
      choice.caveat = row.caveat != nullptr ? row.caveat : "";
      selected.typed = row.typed;
      selected.offer = std::move(offer);
    }
    choice.candidates.push_back(std::move(candidate));
  }
  if (choice.kernel < 0) {
    const std::string wanted = forced.empty() ? "a kernel" : "kernel '" + std::string(forced) + "'";
    const std::string said = refusals(choice);
    core::fail("plan", wanted + " that supports " + problem.print(problem.problem),
               said.empty() ? "no such candidate" : "refusals: " + said,
               forced.empty() && problem.strict ? "pass strict=False, or change what the refusals name"
                                                : "change what the refusals name");
  }
  return selected;
}

}  // namespace sparseloom::plan
