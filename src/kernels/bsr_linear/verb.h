// The verb of a linear layer's products with W in BSR, and Kernel, a row of it.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/args.h"
#include "plan/machine.h"
#include "sparseloom/extension.h"
#include "sparseloom/verb.h"

namespace sparseloom::kernels {
namespace bsr_linear {

/// Forward, dX and dW, which Problem::direction tells apart.
struct Linear {
  static constexpr const char* kName = "bsr_linear";
  using Problem = sparseloom::Problem;
  using Args = MatmulArgs;
  using Schedule = sparseloom::Schedule;
  static ProblemKey key(const Problem& problem);
  static std::string print(const Problem& problem) { return to_string(problem); }
  static std::string print(const Schedule& schedule) { return to_string(schedule); }
};

}  // namespace bsr_linear

using bsr_linear::Linear;

/// Operands that have to be aligned: none, those that are read (Problem::aligned), or those and the matrix
/// that is written (Problem::out_aligned).
enum class Aligned : unsigned char { none, inputs, all };

/// A row: what every row has, and what this family asks of its rows beside. Predictions are for
/// problem.threads threads.
struct Kernel : Row<Linear> {
  runtime::Isa isa = runtime::Isa::generic;  // generic for CUDA kernels
  /// The kernel takes 8-bit operands with scales. ask() refuses all other rows for those, so these need not
  /// check. A row that takes them refuses the dtypes that it does not multiply.
  bool scaled = false;
  /// The kernel runs 8-bit operands only if the caller names it, because it is far too slow to be chosen
  /// unasked.
  bool scaled_by_name = false;
  /// Which of the problem's operands the kernel needs aligned, for TMA or loads of 16 bytes. ask() then
  /// refuses a problem that is not, and a call refuses operands that are less aligned than planned. Null: it
  /// takes any.
  Aligned (*needs_aligned)(const Problem& problem) = nullptr;
  /// Whether the kernel writes args.pre. A caller that needs `pre` of another kernel has it write `pre` as
  /// its output and applies the activation in a pass of its own.
  bool stores_pre = false;
  /// Whether forward of f32 adds args.residual. Otherwise args has none, and the caller adds it to y in a
  /// pass of its own, which rounds as often: y is fp32.
  bool adds_f32_residual = true;
  /// A kernel from outside, whose functions stand in for propose and launch (which are null); or null.
  const SparseloomKernel* outside = nullptr;
};

namespace bsr_linear {

/// A row of this family for the registry, where `kernel` has to stay in its place.
plan::AnyRow any_row(const Kernel& kernel);

/// What a row says of a problem on its own side: why it refuses, or the fastest of its proposals.
struct Answer : Proposal<Linear> {
  std::string refusal;  // empty: it can run the problem
};
Answer ask(const Kernel& kernel, const Problem& problem, const plan::Machine& machine);

/// Which operands of the problem the row needs aligned.
Aligned alignment_of(const Kernel& kernel, const Problem& problem);

/// The fastest prediction among the rows of the CPU that do not refuse; infinite if there is none.
double fastest_us(const Problem& problem, const plan::Machine& machine);

}  // namespace bsr_linear
}  // namespace sparseloom::kernels
