// The verbs of sparseloom/bsr_linear.h: their keys, their refusals of rows, and schedules as text.
#include "sparseloom/bsr_linear.h"

namespace sparseloom::bsr_linear {
namespace {

std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }

// `own`: the members of this verb's problems only, in 24 bits.
ProblemKey key_of(const CommonProblem& p, std::uint64_t own) {
  const std::uint64_t flags = word(p.aligned) | word(p.out_aligned) << 1 | word(p.bias) << 2 |
                              word(p.can_gemm) << 3 | word(p.strict) << 4;
  return {
      word(p.m),
      word(p.rows),
      word(p.cols),
      word(p.blocks),
      word(p.block.rows) << 32 | word(p.block.cols),
      word(p.facts.digest()),
      word(p.threads) << 32 | static_cast<std::uint32_t>(p.device),
      word(static_cast<int>(p.dtype)) | word(static_cast<int>(p.activation)) << 8 | flags << 16 | own << 32};
}

std::string print_of(const CommonProblem& p, Direction direction, const Schedule& schedule) {
  std::string text = to_string(schedule);
  if (schedule.groups.block_rows > 0 && p.facts.known)
    text += std::string(text.empty() ? "" : "\n  ") + "orders block " +
            (direction == Direction::dx ? "columns" : "rows") +
            ": those that read the same K tiles together, costly ones first";
  return text;
}

}  // namespace

ProblemKey Linear::key(const Problem& p) {
  ProblemKey key = key_of(p, word(static_cast<int>(p.direction)) | word(p.residual) << 8 |
                                 word(p.accumulate) << 9 | word(p.tf32) << 10 | word(p.glu) << 11);
  key.back() = word(p.factor_blocks);
  return key;
}

ProblemKey Scaled::key(const Problem& p) {
  return key_of(p, word(static_cast<int>(p.out)) | word(p.fast_accum) << 8);
}

std::string Linear::print(const Problem& problem, const Schedule& schedule) {
  return print_of(problem, problem.direction, schedule);
}

std::string Scaled::print(const Problem& problem, const Schedule& schedule) {
  return print_of(problem, Direction::forward, schedule);
}

Refusal refuse_moving(bool follows_index, const CommonProblem& problem) {
  if (problem.device < 0 || !problem.facts.moving || follows_index) return {};
  return "its time would not follow the stored blocks, whose number moves on the device";
}

Refusal refuse_misaligned(Aligned needs, const CommonProblem& problem) {
  if ((needs != Aligned::none && !problem.aligned) || (needs == Aligned::all && !problem.out_aligned))
    return "needs operands whose base and rows lie at multiples of 16 bytes, and one does not";
  return {};
}

}  // namespace sparseloom::bsr_linear
