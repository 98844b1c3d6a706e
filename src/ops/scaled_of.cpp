// The 8-bit products of 2:4 and bitmap weights: their verbs, plans and calls.
#include "sparseloom/scaled_of.h"

#include <algorithm>

#include "core/check.h"
#include "ops/eight_bit.h"
#include "ops/rows.h"

namespace sparseloom {
namespace {

// Elements of an output that may be stored: of 2:4 two of four columns.
template <class L>
std::int64_t most_stored(std::int64_t cols) {
  return std::same_as<L, Semi24> ? 2 * ((cols + 3) / 4) : cols;
}

template <class L>
void check(const ScaledLinearProblem& p) {
  const std::string dtype = name_of(p.dtype);
  if (!is_scaled(p.dtype))
    core::fail("plan", "operands of i8 or f8e4m3", dtype,
               std::string("plan a LinearOf the layout ") + L::kId + ", which takes no scales");
  ops::require_out_of_8_bits(p.dtype, p.out, "ScaledLinearProblem");
  if (p.direction != Direction::forward || p.residual)
    core::fail("plan", "a forward product without a residual for " + dtype + " operands",
               std::string(name_of(p.direction)) + (p.residual ? " with a residual" : ""),
               "add the residual to the result; gradients need a layer of 16 bits");
  if (const std::int64_t stored = most_stored<L>(p.cols); p.dtype == DType::i8 && stored > ops::kInt8Products)
    core::fail("plan",
               "at most " + std::to_string(ops::kInt8Products) +
                   " stored int8 elements of an output, whose sums fit int32",
               std::to_string(stored), "split the layer along its inputs, or use bf16");
}

}  // namespace

#define SPARSELOOM_SCALED_OF(result) \
  template <Layout L>                \
  requires std::same_as<L, Semi24> || std::same_as<L, Bitmap> result ScaledOf<L>

SPARSELOOM_SCALED_OF(ProblemKey)::key(const Problem& p) {
  ProblemKey key = LinearOf<L>::key(p);
  key.back() = static_cast<std::uint64_t>(p.out) | static_cast<std::uint64_t>(p.fast_accum) << 8;
  return key;
}

SPARSELOOM_SCALED_OF(std::string)::print(const Problem& p) {
  return LinearOf<L>::print(p) + " out=" + name_of(p.out) + (p.fast_accum ? " fast_accum" : "");
}

SPARSELOOM_SCALED_OF(ScaledLinearProblem)::describe(const View& view, DType dtype, DType out,
                                                    std::int64_t m) {
  Problem problem{LinearOf<L>::describe(view, Direction::forward, dtype, m)};
  problem.out = out;
  return problem;
}

SPARSELOOM_SCALED_OF(std::shared_ptr<const PlanOf<ScaledOf<L>>>)::plan(Problem problem,
                                                                       const Executor& executor,
                                                                       std::string_view forced) {
  ops::enter_own_rows();
  require_linear_problem(kName, problem);
  check<L>(problem);
  problem.device = executor.device;
  problem.threads = std::max(1, executor.num_threads);
  problem.fast_accum = problem.fast_accum && problem.device >= 0 && problem.dtype == DType::f8e4m3;
  return plan_for<ScaledOf>(problem, executor, forced);
}

SPARSELOOM_SCALED_OF(void)::run(const Plan& plan, MatmulArgs product, const View& view,
                                std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  if (L::rows(view) != p.rows || L::cols(view) != p.cols || L::stored(view) != p.stored)
    core::fail(kName, "the index that was planned: " + print(p),
               core::shape(L::rows(view), L::cols(view)) + " stored=" + std::to_string(L::stored(view)),
               "plan again for this index");
  if (p.m == 0 || p.rows == 0) return;  // before bias and scales are checked, since empty ones may be null
  if ((product.bias != nullptr) != p.bias || product.residual != nullptr)
    core::fail(kName, "a bias as planned and no residual: " + print(p), "other operands",
               "plan for what the call passes");
  if (product.a_scale == nullptr || product.w_scale == nullptr)
    core::fail(kName, "scales of x and of the weight", "a null pointer", "pass one factor, or one for each");
  if (!L::has_memory(view)) core::fail(kName, "memory behind the index", "a null pointer", "pass its arrays");
  product.out_dtype = p.out, product.fast_accum = p.fast_accum;
  launch_linear<ScaledOf>(plan, product, view, workspace, executor);
}

#undef SPARSELOOM_SCALED_OF

template struct ScaledOf<Semi24>;
template struct ScaledOf<Bitmap>;

}  // namespace sparseloom
