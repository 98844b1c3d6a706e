// The verb "semi24_scaled_linear": the forward product of 2:4 weights (semi24.h) of 8 bits with scales;
// semi24_linear.h has the other dtypes. They are two verbs because operands, epilogue and exactness differ;
// matmul_args.h defines the arithmetic, in which only stored elements take part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sparseloom/export.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom {

/// What LinearProblem says, with a dtype of i8 or f8e4m3, a direction of forward and no residual; and
struct Semi24ScaledProblem : LinearProblem {
  DType out = DType::f32;  // of the result and the bias: bf16 or f32
  // f8e4m3 on CUDA only: sums may stay in the tensor cores, which keep some 14 bits (torch's use_fast_accum).
  bool fast_accum = false;
};

struct Semi24Scaled {
  static constexpr const char* kName = "semi24_scaled_linear";
  using Problem = Semi24ScaledProblem;
  using Args = Semi24Linear::Args;
  using Schedule = Semi24Linear::Schedule;
  using Plan = PlanOf<Semi24Scaled>;

  SPARSELOOM_API static ProblemKey key(const Problem& problem);
  SPARSELOOM_API static std::string print(const Problem& problem);
  static std::string print(const Schedule& schedule) { return Semi24Linear::print(schedule); }

  /// A problem of m tokens with this index. Set bias, activation, strict, aligned and fast_accum before
  /// planning.
  SPARSELOOM_API static Problem describe(const Semi24View& view, DType dtype, DType out, std::int64_t m);

  /// Chooses a row, or returns the cached plan. `forced` names a row. Throws Error for dtypes other than
  /// those above, if int8 sums could overflow (an output of more than 131071 stored elements), and, listing
  /// every refusal, when no row can run.
  SPARSELOOM_API static std::shared_ptr<const Plan> plan(Problem problem, const Executor& executor,
                                                         std::string_view forced = {});

  /// Runs the planned product. Set a, values, bias and out of `product` with their strides, and the scales,
  /// as MatmulArgs defines them; the rest comes from the plan. Index, workspace and errors are as in
  /// LinearOf::run.
  SPARSELOOM_API static void run(const Plan& plan, MatmulArgs product, const Semi24View& view,
                                 std::span<std::byte> workspace, const Executor& executor);
};

}  // namespace sparseloom
