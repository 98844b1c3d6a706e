// LinearOf<L>: the three products of a linear layer on a layout of your own, planned like BSR's, among the
// generic rows and those that you add. A layout from outside needs only this header:
//
//   using Linear = sparseloom::LinearOf<Ell>;
//   auto problem = Linear::describe(view, Direction::forward, DType::f32, tokens);
//   auto plan = Linear::plan(problem, executor);            // chosen once, cached, explained by describe()
//   Linear::run(*plan, args, view, workspace, executor);    // any number of times
//
// A fast kernel is a Row<Linear> (verb.h) that register_row() takes. docs/add_a_layout.md has both.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sparseloom/error.h"
#include "sparseloom/extension.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/generic/reference.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/rates.h"
#include "sparseloom/verb.h"

namespace sparseloom {

/// The inputs of the choice of a row for a product on a layout; of the pattern, the number of slots, and
/// `shape` if the layout has one.
struct LinearProblem {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  std::int64_t m = 0, rows = 0, cols = 0;  // tokens, out features, in features
  std::int64_t stored = 0;                 // slots of the values
  std::int64_t shape = 0;                  // L::shape(view): numbers of the layout's own, otherwise 0
  bool bias = false;
  Activation activation = Activation::none;  // forward only
  bool residual = false;                     // forward only
  bool strict = false;                       // forbids the rows `dense` and `reference`
  // All operands lie at multiples of 16 bytes, and so do the rows of the dense ones. Some rows on CUDA
  // devices need it; the caller, who knows the addresses, clears it if that does not hold.
  bool aligned = true;
  // plan() takes these from the executor.
  int threads = 1, device = -1;
  bool can_gemm = false;
  Rates rates = {};
};

/// The refusals of LinearOf<L> and ScaledOf<L> for a problem and for a call on any layout, in the name of
/// the verb: sizes, dtypes and epilogues that no product supports; null operands, row strides below the
/// number of columns, another device than planned, and a workspace that does not fit.
SPARSELOOM_API void require_linear_problem(const char* verb, const LinearProblem& problem);
SPARSELOOM_API void require_linear_call(const char* verb, const LinearProblem& problem,
                                        std::size_t workspace_bytes, const MatmulArgs& product,
                                        std::span<std::byte> workspace, const Executor& executor);

/// The end of a run of every verb on a layout: checks the call, adds the plan's facts, and queues the kernel.
template <class V, class View>
void launch_linear(const PlanOf<V>& plan, MatmulArgs product, const View& view,
                   std::span<std::byte> workspace, const Executor& executor) {
  const LinearProblem& p = plan.problem;
  require_linear_call(V::kName, p, plan.workspace_bytes, product, workspace, executor);
  product.direction = p.direction, product.dtype = p.dtype, product.activation = p.activation;
  product.m = p.m, product.workspace = workspace.data();
  product.device = executor.device, product.stream = executor.stream;
  Executor planned = executor;  // a workspace is as large as the planned threads need it
  planned.num_threads = std::min(executor.num_threads, p.threads);
  if (const int error = plan.launch({product, view}, planned); error != 0)
    throw Error(V::kName, "the kernel " + plan.kernel_name + " to be queued",
                "CUDA error " + std::to_string(error) + " on " + V::print(plan.problem),
                "check that the problem says how the operands are aligned, and the errors of earlier calls");
}

/// The verb "<kId>_linear" of a layout. Its rows `dense` and `reference` exist from the start; they run on
/// the CPU. A CUDA device needs rows that are added.
template <Layout L>
struct LinearOf {
  using View = typename L::View;
  using Problem = LinearProblem;
  /// The arguments of a row: operands, epilogue and workspace (the index of `product` stays empty), and the
  /// index.
  struct Args {
    MatmulArgs product;
    View view;
  };
  /// A row that has several ways to run numbers them, and proposes each with its own prediction.
  struct Schedule {
    std::int32_t variant = 0;
  };
  using Plan = PlanOf<LinearOf>;

  static constexpr auto kLetters = [] {
    constexpr std::string_view id = L::kId, suffix = "_linear";
    std::array<char, id.size() + suffix.size() + 1> letters{};
    std::copy(suffix.begin(), suffix.end(), std::copy(id.begin(), id.end(), letters.begin()));
    return letters;
  }();
  static constexpr const char* kName = kLetters.data();

  static ProblemKey key(const Problem& p) {
    const auto word = [](auto number) { return static_cast<std::uint64_t>(number); };
    const std::uint64_t flags = word(p.bias) | word(p.residual) << 1 | word(p.strict) << 2 |
                                word(p.can_gemm) << 3 | word(p.aligned) << 4;
    return {word(p.m),
            word(p.rows),
            word(p.cols),
            word(p.stored),
            word(p.direction) | word(p.dtype) << 8 | word(p.activation) << 16 | flags << 24,
            word(p.threads) << 32 | static_cast<std::uint32_t>(p.device),
            std::bit_cast<std::uint64_t>(p.rates.gemm_flops),
            word(p.shape)};
  }

  static std::string print(const Problem& p) {
    std::string text = std::string(name_of(p.direction)) + " " + name_of(p.dtype) +
                       " m=" + std::to_string(p.m) + " W=[" + std::to_string(p.rows) + ", " +
                       std::to_string(p.cols) + "] layout=" + L::kId + " stored=" + std::to_string(p.stored);
    if (p.bias) text += " bias";
    if (p.activation != Activation::none) text += std::string(" ") + name_of(p.activation);
    if (p.residual) text += " residual";
    if (p.device >= 0)
      text += " device=cuda:" + std::to_string(p.device) + (p.aligned ? "" : " misaligned");
    else
      text += " threads=" + std::to_string(p.threads);
    return text + (p.strict ? " strict" : "");
  }
  static std::string print(const Schedule& s) {
    return s.variant == 0 ? std::string() : "variant " + std::to_string(s.variant);
  }

  /// A problem of m tokens with this index. Set bias, activation, residual and strict before planning.
  static Problem describe(const View& view, Direction direction, DType dtype, std::int64_t m) {
    Problem p;
    p.direction = direction, p.dtype = dtype, p.m = m;
    p.rows = L::rows(view), p.cols = L::cols(view), p.stored = L::stored(view);
    p.shape = shape_of(view);
    return p;
  }

  /// Chooses a row, or returns the cached plan. `forced` names a row. Throws Error listing every refusal when
  /// no row can run, and as require_linear_problem.
  static std::shared_ptr<const Plan> plan(Problem problem, const Executor& executor,
                                          std::string_view forced = {}) {
    register_generic_rows();
    require_linear_problem(kName, problem);
    problem.device = executor.device;
    problem.threads = std::max(1, executor.num_threads);
    problem.can_gemm = executor.gemm != nullptr;
    problem.rates =
        rates_for(problem.direction, problem.dtype, problem.m, problem.rows, problem.cols, executor);
    return plan_for<LinearOf>(problem, executor, forced);
  }

  /// Runs the planned product. Set the operands and strides of `product` as MatmulArgs defines them for the
  /// direction, with values [stored]; the rest comes from the plan. The index must be valid (L::validate) and
  /// have the plan's sizes. Of an executor with more threads than planned, only the planned number works.
  /// workspace: at least plan.workspace_bytes, aligned to 64 bytes (256 on CUDA). Throws Error if sizes or
  /// epilogue are not the plan's, as require_linear_call, for a View that L::has_memory denies, and if the
  /// kernel could not be queued.
  static void run(const Plan& plan, MatmulArgs product, const View& view, std::span<std::byte> workspace,
                  const Executor& executor) {
    const Problem& p = plan.problem;
    if (L::rows(view) != p.rows || L::cols(view) != p.cols || L::stored(view) != p.stored ||
        shape_of(view) != p.shape)
      throw Error(kName, "the index that was planned: " + print(p),
                  "W=[" + std::to_string(L::rows(view)) + ", " + std::to_string(L::cols(view)) +
                      "] stored=" + std::to_string(L::stored(view)),
                  "plan again for this index");
    if constexpr (requires { L::has_memory(view); })
      if (!L::has_memory(view))
        throw Error(kName, "memory behind the index", "a null pointer", "pass its arrays");
    if (p.rows > 0 && ((product.bias != nullptr) != p.bias || (product.residual != nullptr) != p.residual))
      throw Error(kName, "bias and residual as planned: " + print(p), "others", "say both in the problem");
    launch_linear<LinearOf>(plan, product, view, workspace, executor);
  }

 private:
  static std::int64_t shape_of(const View& view) {
    if constexpr (requires { L::shape(view); })
      return L::shape(view);
    else
      return 0;
  }

  static void register_generic_rows() {
    static const bool once = [] {
      static constexpr Row<LinearOf> dense{"dense", Placement::cpu, propose_dense, launch_dense,
                                           kernels::generic::kDenseCaveat};
      static constexpr Row<LinearOf> reference{"reference", Placement::cpu, propose_reference,
                                               launch_reference};
      // Another library with the same layout may have been first: its rows are the same.
      register_row(dense), register_row(reference);
      return true;
    }();
    static_cast<void>(once);
  }

  static Refusal propose_dense(const Problem& p, const sparseloom::plan::Machine&, Proposals<LinearOf>& out) {
    if (p.strict) return "strict forbids going dense";
    if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
    const kernels::generic::DenseProblem dense{p.direction,
                                               p.dtype,
                                               p.m,
                                               p.rows,
                                               p.cols,
                                               p.threads,
                                               p.can_gemm,
                                               p.activation != Activation::none || p.residual,
                                               p.rates.copy_bytes,
                                               p.rates.gemm_flops};
    if (const char* const why = kernels::generic::refuse_dense_on_cpu(dense)) return why;
    double us = kernels::generic::predict_dense_on_cpu_us(dense);
    if constexpr (requires { L::unpack_ns(p.shape); })
      us += 1e-3 * L::unpack_ns(p.shape) * static_cast<double>(p.stored) / std::max(1, p.threads);
    out.add({{}, us, static_cast<std::size_t>(p.rows * p.cols) * size_of(p.dtype)});
    return {};
  }

  static int launch_dense(const Args& args, const Schedule&, const Executor& executor) {
    return kernels::generic::dense_on_cpu<L>(args.product, args.view, executor);
  }

  static Refusal propose_reference(const Problem& p, const sparseloom::plan::Machine&,
                                   Proposals<LinearOf>& out) {
    if (p.strict) return "strict forbids the reference kernel";
    if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
    const double madds = static_cast<double>(p.m) * static_cast<double>(p.stored);
    const int busy = static_cast<int>(std::clamp<std::int64_t>(p.m, 1, p.threads));  // each takes tokens
    double searched_us = 0;
    if constexpr (requires { L::visit_ns(p.shape); })
      searched_us = madds * 1e-3 * L::visit_ns(p.shape) / busy;
    const bool sums = p.direction == Direction::dx;
    const int threads = p.direction == Direction::dw ? p.threads : busy;
    out.add({{},
             searched_us + kernels::generic::predict_reference_us(madds, threads),
             sums ? kernels::generic::dx_workspace_bytes(p.m, p.cols, p.threads) : 0});
    return {};
  }

  static int launch_reference(const Args& args, const Schedule&, const Executor& executor) {
    switch (args.product.direction) {
      case Direction::forward: kernels::generic::forward<L>(args.product, args.view, executor); break;
      case Direction::dx: kernels::generic::dx<L>(args.product, args.view, executor); break;
      case Direction::dw: kernels::generic::dw<L>(args.product, args.view, executor); break;
    }
    return 0;
  }
};

}  // namespace sparseloom
