// The rows of this library for the verbs of sparseloom/bsr_linear.h, and queries for tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/args.h"
#include "plan/machine.h"
#include "sparseloom/bsr_linear.h"
#include "sparseloom/verb.h"

namespace sparseloom::kernels {

using sparseloom::bsr_linear::Aligned;
using sparseloom::bsr_linear::Linear;
using sparseloom::bsr_linear::Scaled;

/// A row, and the instruction set that it needs. Predictions are for problem.threads threads.
template <class V>
struct OwnRow : Row<V> {
  runtime::Isa isa = runtime::Isa::generic;  // generic for CUDA kernels
};
using Kernel = OwnRow<Linear>;
using ScaledKernel = OwnRow<Scaled>;

namespace bsr_linear {

/// A row's answer to a problem: its refusal, or the fastest of its proposals.
template <class V>
struct AnswerOf : Proposal<V> {
  std::string refusal;  // empty: it can run the problem
};
using Answer = AnswerOf<Linear>;

template <class V>
AnswerOf<V> ask(const OwnRow<V>& row, const typename V::Problem& problem, const plan::Machine& machine) {
  plan::Offer offer;
  Proposals<V> proposals(offer);
  AnswerOf<V> answer;
  answer.refusal = plan::ask<V>(row, problem, machine, proposals).text();
  if (!answer.refusal.empty()) return answer;
  std::memcpy(&answer.schedule, offer.schedule, sizeof answer.schedule);
  answer.predicted_us = offer.predicted_us;
  answer.workspace_bytes = offer.workspace_bytes;
  return answer;
}

}  // namespace bsr_linear
}  // namespace sparseloom::kernels
