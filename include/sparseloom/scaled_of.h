// ScaledOf<L>: the forward product of weights of 8 bits with scales, on the layouts Semi24 and Bitmap;
// LinearOf (linear_of.h) has the other dtypes. They are two verbs because operands, epilogue and exactness
// differ; matmul_args.h defines the arithmetic, in which only stored elements take part.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sparseloom/bitmap_linear.h"
#include "sparseloom/export.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom {

/// What LinearProblem says, with a dtype of i8 or f8e4m3, a direction of forward and no residual; and
struct ScaledLinearProblem : LinearProblem {
  DType out = DType::f32;  // of the result and the bias: bf16 or f32
  // f8e4m3 on CUDA only: sums may stay in the tensor cores, which keep some 14 bits (torch's use_fast_accum).
  bool fast_accum = false;
};

/// The verb "<kId>_scaled_linear". The members are in this library, for these layouts alone.
template <Layout L>
requires std::same_as<L, Semi24> || std::same_as<L, Bitmap>
struct ScaledOf {
  using View = typename L::View;
  using Problem = ScaledLinearProblem;
  using Args = typename LinearOf<L>::Args;
  using Schedule = typename LinearOf<L>::Schedule;
  using Plan = PlanOf<ScaledOf>;

  static constexpr auto kLetters = [] {
    constexpr std::string_view id = L::kId, suffix = "_scaled_linear";
    std::array<char, id.size() + suffix.size() + 1> letters{};
    std::copy(suffix.begin(), suffix.end(), std::copy(id.begin(), id.end(), letters.begin()));
    return letters;
  }();
  static constexpr const char* kName = kLetters.data();

  static ProblemKey key(const Problem& problem);
  static std::string print(const Problem& problem);
  static std::string print(const Schedule& schedule) { return LinearOf<L>::print(schedule); }

  /// A problem of m tokens with this index. Set bias, activation, strict, aligned and fast_accum before
  /// planning.
  static Problem describe(const View& view, DType dtype, DType out, std::int64_t m);

  /// Chooses a row, or returns the cached plan. `forced` names a row. Throws Error for dtypes other than
  /// those above, if int8 sums could overflow (an output of more than 131071 elements that may be stored),
  /// and, listing every refusal, when no row can run.
  static std::shared_ptr<const Plan> plan(Problem problem, const Executor& executor,
                                          std::string_view forced = {});

  /// Runs the planned product. Set a, values, bias and out of `product` with their strides, and the scales,
  /// as MatmulArgs defines them; the rest comes from the plan. Index, workspace and errors are as in
  /// LinearOf::run.
  static void run(const Plan& plan, MatmulArgs product, const View& view, std::span<std::byte> workspace,
                  const Executor& executor);
};

extern template struct SPARSELOOM_API ScaledOf<Semi24>;
extern template struct SPARSELOOM_API ScaledOf<Bitmap>;

using Semi24Scaled = ScaledOf<Semi24>;
using BitmapScaled = ScaledOf<Bitmap>;

}  // namespace sparseloom
