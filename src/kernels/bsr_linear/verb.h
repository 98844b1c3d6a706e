// The verb of a linear layer's products with W in BSR, and its rows as the plan sees them.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/args.h"
#include "sparseloom/verb.h"

namespace sparseloom::kernels::bsr_linear {

/// Forward, dX and dW, which Problem::direction tells apart.
struct Linear {
  static constexpr const char* kName = "bsr_linear";
  using Problem = sparseloom::Problem;
  using Args = MatmulArgs;
  struct Schedule {
    BlockRowGroups groups{0};
  };
  static ProblemKey key(const Problem& problem);
  static std::string print(const Problem& problem) { return to_string(problem); }
  static std::string print(const Schedule&) { return {}; }
};

/// A row of this family for the registry, where `kernel` has to stay in its place.
plan::AnyRow any_row(const Kernel& kernel);

/// Why the row cannot run a problem on its own side: it takes no 8-bit operands or no misaligned ones, or its
/// own refusal. Empty if it can.
std::string refusal_of(const plan::KernelInfo& row, const Problem& problem, const plan::Machine& machine);

/// Which operands of the problem the row needs aligned.
plan::Aligned alignment_of(const plan::KernelInfo& row, const Problem& problem);

/// The fastest prediction among the rows of the CPU that do not refuse; infinite if there is none.
double fastest_us(const Problem& problem, const plan::Machine& machine);

}  // namespace sparseloom::kernels::bsr_linear
