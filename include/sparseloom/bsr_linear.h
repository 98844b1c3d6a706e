// The verbs of a linear layer with W in BSR: Linear, and Scaled for 8-bit operands. A kernel from outside is
// a Row of one of them, which register_row (verb.h) takes; docs/add_a_kernel.md has an example.
//
// Forward, dX and dW are one verb with a direction: most rows serve several of them from one propose(), the
// rates and costs that they predict from are the same, and a training step plans all three from one index.
// 8-bit products are a verb of their own, because they have other operands, epilogues and exactness rules,
// and no gradients: a row of the one would have to refuse every problem of the other.
#pragma once

#include <string>

#include "sparseloom/export.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"
#include "sparseloom/schedule.h"
#include "sparseloom/verb.h"

namespace sparseloom {
namespace bsr_linear {

/// Operands that have to be aligned: none, those that are read (Problem::aligned), or those and the matrix
/// that is written (Problem::out_aligned).
enum class Aligned : unsigned char { none, inputs, all };

/// What a row says of alignment, for problems P.
template <class P>
struct AlignmentTraits {
  /// Which of the problem's operands the kernel needs aligned, for TMA or loads of 16 bytes. A problem that
  /// is not is then refused, and so is a call with operands that are less aligned than planned. Null: it
  /// takes any.
  Aligned (*needs_aligned)(const P& problem) = nullptr;

  Aligned alignment_of(const P& problem) const {
    return needs_aligned != nullptr ? needs_aligned(problem) : Aligned::none;
  }
};

/// The refusal of operands that are less aligned than the row needs.
SPARSELOOM_API Refusal refuse_misaligned(Aligned needs, const CommonProblem& problem);

/// The refusal, on CUDA, of an index that is stored in part (Facts::moving): the host does not know its
/// number of blocks.
SPARSELOOM_API Refusal refuse_moving(bool follows_index, const CommonProblem& problem);

/// Forward, dX and dW (Problem::direction) of f32, f16, bf16 and f64.
struct Linear {
  static constexpr const char* kName = "bsr_linear";
  using Problem = sparseloom::Problem;
  using Args = MatmulArgs;
  using Schedule = sparseloom::Schedule;
  struct Traits : AlignmentTraits<Problem> {
    /// Whether the kernel writes args.pre. A caller that needs `pre` of another kernel has it write `pre` as
    /// its output and applies the activation in a pass of its own.
    bool stores_pre = false;
    /// Whether forward of f32 adds args.residual. Otherwise args has none, and the caller adds it to y in a
    /// pass of its own, which rounds as often: y is fp32.
    bool adds_f32_residual = true;
    /// Whether the kernel computes a glu (MatmulArgs::glu).
    bool glu = false;
    /// Whether the kernel finds all of its work in the index on the device. Others divide IndexView::blocks
    /// on the host, and refuse Facts::moving.
    bool follows_index = false;
  };
  SPARSELOOM_API static ProblemKey key(const Problem& problem);
  static Refusal refuse(const Traits& traits, const Problem& problem) {
    if (problem.glu && !traits.glu) return "multiplies one weight, and a gated linear unit has two";
    if (const Refusal why = refuse_moving(traits.follows_index, problem)) return why;
    return refuse_misaligned(traits.alignment_of(problem), problem);
  }
  static std::string print(const Problem& problem) { return to_string(problem); }
  static std::string print(const Schedule& schedule) { return to_string(schedule); }
  /// Says too in which order block rows are taken, which depends on what is known of the pattern.
  SPARSELOOM_API static std::string print(const Problem& problem, const Schedule& schedule);
};

/// Forward of i8 and f8e4m3 with scales; matmul_args.h fixes its arithmetic.
struct Scaled {
  static constexpr const char* kName = "bsr_scaled_linear";
  using Problem = ScaledProblem;
  using Args = MatmulArgs;
  using Schedule = sparseloom::Schedule;
  using Traits = AlignmentTraits<Problem>;
  SPARSELOOM_API static ProblemKey key(const Problem& problem);
  static Refusal refuse(const Traits& traits, const Problem& problem) {
    if (const Refusal why = refuse_moving(false, problem)) return why;
    return refuse_misaligned(traits.alignment_of(problem), problem);
  }
  static std::string print(const Problem& problem) { return to_string(problem); }
  static std::string print(const Schedule& schedule) { return to_string(schedule); }
  SPARSELOOM_API static std::string print(const Problem& problem, const Schedule& schedule);
};

}  // namespace bsr_linear

/// What make_plan (ops.h) returns. On CUDA, a call whose index was remembered (remember_index) multiplies
/// block rows together that read the same parts of the dense operand, as schedule.groups says.
using Plan = PlanOf<bsr_linear::Linear>;
using ScaledPlan = PlanOf<bsr_linear::Scaled>;

}  // namespace sparseloom
