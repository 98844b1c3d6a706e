// How a product of any family is planned: its verb, the rows that can run it, and the plan that chose one.
//
// A family from outside uses this header so:
//   1. It writes a verb, a struct with the types Problem, Args and Schedule and a few static functions (the
//      concept Verb below), for example of the forward product on a layout of its own.
//   2. For each kernel it writes a `Row<Verb>` that lives as long as the process, and calls register_row(row)
//      once. propose() refuses a problem or offers schedules with predicted times; launch() runs one.
//   3. To multiply, it fills a Problem, calls plan_for<Verb>(problem, executor) - which looks in the cache,
//      asks the rows and keeps the fastest - lends plan->workspace_bytes, and calls plan->launch(args,
//      executor). plan->describe() says why each other row was not taken; a third argument forces a row.
// The registry and the cache are those of libsparseloom.so, whoever calls; the templates are their typed
// face and may be instantiated in a library with hidden visibility.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sparseloom/deterministic.h"
#include "sparseloom/error.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/kept.h"
#include "sparseloom/plan.h"
#include "sparseloom/refusal.h"

namespace sparseloom {

namespace plan {
/// The machine's capabilities and its rates. Rows of the library know it (src/plan/machine.h); to others it
/// is opaque.
struct Machine;
}  // namespace plan

/// The device of a row's operands. A row is refused without a call to propose() for problems on the other
/// side.
enum class Placement : std::uint8_t { cpu, cuda, any };

/// The most bytes of a Schedule, and the number of words of a problem's key.
inline constexpr std::size_t kScheduleBytes = 256, kKeyWords = 12;
using ProblemKey = std::array<std::uint64_t, kKeyWords>;

/// One product of a family. `kName` is unlike every other verb's.
///
///   Problem    all inputs of the choice; has `device` (CUDA ordinal, or -1: the CPU) and `strict`
///   Args       the arguments of a launch besides the schedule
///   Schedule   all that is chosen before a launch; trivially copyable, without pointers
///   key        the problem in words: equal if and only if the problems are
///   print      a problem, or a schedule (empty if there is nothing to say), as text of a plan
///
/// It may also have
///
///   Traits                    a struct that each row holds a value of, as Row::traits
///   refuse(traits, problem)   the Refusal that a row's traits mean for a problem; asked before propose()
///   print(problem, schedule)  the schedule where the text depends on the problem
template <class V>
concept Verb = requires(const typename V::Problem& problem, const typename V::Schedule& schedule) {
  typename V::Args;
  { V::kName } -> std::convertible_to<const char*>;
  { V::key(problem) } -> std::same_as<ProblemKey>;
  { V::print(problem) } -> std::same_as<std::string>;
  { V::print(schedule) } -> std::same_as<std::string>;
  { problem.device } -> std::convertible_to<int>;
  { problem.strict } -> std::convertible_to<bool>;
}
&&std::is_trivially_copyable_v<typename V::Schedule> && sizeof(typename V::Schedule) <= kScheduleBytes;

namespace plan {

/// The fastest proposal of one row, without its type.
struct Offer {
  alignas(16) std::byte schedule[kScheduleBytes];
  double predicted_us = 0;
  std::size_t workspace_bytes = 0;
  bool made = false;
  std::string unless_named;  // why the row is refused unless it is named; or empty
};

}  // namespace plan

/// One way to run a problem. The prediction is for one call with warm code and with inputs outside L2.
template <class V>
struct Proposal {
  typename V::Schedule schedule;
  double predicted_us = 0;
  std::size_t workspace_bytes = 0;
};

/// Takes the proposals of a row and keeps the fastest; of equal ones the first.
template <class V>
class Proposals {
 public:
  explicit Proposals(plan::Offer& best) : best_(best) {}

  void add(const Proposal<V>& proposal) {
    if (best_.made && proposal.predicted_us >= best_.predicted_us) return;
    std::memcpy(best_.schedule, &proposal.schedule, sizeof proposal.schedule);
    best_.predicted_us = proposal.predicted_us;
    best_.workspace_bytes = proposal.workspace_bytes;
    best_.made = true;
  }

  /// The row runs the problem only if the caller names it: it is far too slow to be chosen otherwise.
  void only_by_name(const Refusal& why) { best_.unless_named = why.text(); }

 private:
  plan::Offer& best_;
};

namespace plan {

struct NoTraits {};
template <class V>
struct TraitsOf {
  using type = NoTraits;
};
template <class V>
requires requires { typename V::Traits; }
struct TraitsOf<V> {
  using type = typename V::Traits;
};

}  // namespace plan

/// A kernel that can run a verb. The functions may be called by several threads at once.
template <class V>
struct Row {
  const char* name;  // unlike that of every other row of the verb
  Placement where;
  /// Says why the row cannot run the problem, or adds at least one proposal.
  Refusal (*propose)(const typename V::Problem& problem, const plan::Machine& machine, Proposals<V>& out);
  /// Runs a schedule that propose() offered, on the executor's threads, or queues it on its stream. Returns
  /// 0 or a cudaError_t, and throws nothing of its own (what the executor's callbacks throw passes through).
  int (*launch)(const typename V::Args& args, const typename V::Schedule& schedule, const Executor& executor);
  /// How NaN spreads, where it differs from the sparse kernels' rule, as plans print it; or null.
  const char* caveat = nullptr;
  /// The row's traits besides (V::Traits), with defaults that are safe for every row.
  [[no_unique_address]] typename plan::TraitsOf<V>::type traits = {};
};

/// The part of a plan that does not depend on the verb.
struct Choice {
  int kernel = -1;  // row among those of the verb
  KeptText kernel_name;
  // All rows of the verb, in the order in which they were registered.
  std::vector<Candidate, KeptAllocator<Candidate>> candidates;
  double predicted_us = 0;
  // Scratch that the caller lends to each call; 64-byte aligned on the CPU, 256-byte aligned on CUDA.
  std::size_t workspace_bytes = 0;
  // The elements that the kernel multiplies besides the stored ones, so that NaN spreads from there; or
  // empty.
  KeptText caveat;
  // One line of text: the instruction set in force or the GPU, the rates that decided, and their origin.
  KeptText machine;
};

namespace plan {

/// Changes when a member of AnyRow, or what propose() may expect, does.
inline constexpr std::uint32_t kRowAbi = 2;

/// A row without its type: `typed` is the Row<V>, which propose() knows how to call.
struct AnyRow {
  std::uint32_t size = sizeof(AnyRow), abi = kRowAbi;
  std::uint32_t row_size = 0, problem_size = 0, args_size = 0, schedule_size = 0;
  const char* verb = nullptr;
  const void* typed = nullptr;
  const char* name = nullptr;
  const char* caveat = nullptr;
  Placement where = Placement::cpu;
  /// Returns why the row refuses, or nothing.
  std::string (*propose)(const void* typed, const void* problem, const Machine& machine,
                         Offer& out) = nullptr;
};

/// A problem without its type.
struct AnyProblem {
  const char* verb = nullptr;
  const void* problem = nullptr;
  std::string (*print)(const void* problem) = nullptr;
  int device = -1;
  bool strict = false;
};

/// A choice, with the row that was chosen and its schedule.
struct Selected {
  Choice choice;
  const void* typed = nullptr;
  Offer offer;
};

/// Takes the row with the lowest predicted time that does not refuse, or the row named `forced` if that is
/// not empty; ties go to the earlier row. Throws Error listing every refusal if no row can run, if `forced`
/// names no row, or if the forced row refuses.
SPARSELOOM_API Selected select(const AnyProblem& problem, const Machine& machine, std::string_view forced);

/// select() on the machine of the executor, whose rates are measured on first use.
SPARSELOOM_API Selected select(const AnyProblem& problem, const Executor& executor, std::string_view forced);

/// The plan that the process keeps for this verb, key, forced row and number of rows in the registry. If it
/// keeps none, the result of `make`, which is called outside of the lock.
SPARSELOOM_API std::shared_ptr<const void> cached(const char* verb, const ProblemKey& key,
                                                  std::string_view forced,
                                                  std::shared_ptr<const void> (*make)(const void* context),
                                                  const void* context);

/// The text of a plan; problem and schedule as their verb prints them.
SPARSELOOM_API std::string describe(const Choice& choice, const std::string& problem,
                                    const std::string& schedule);

}  // namespace plan
}  // namespace sparseloom

extern "C" {

/// The results of sparseloom_register_row other than a row's number.
enum {
  SPARSELOOM_OTHER_ABI = -1,   // the caller was built with other headers than the library: build it again
  SPARSELOOM_INCOMPLETE = -2,  // a name or function is missing
  SPARSELOOM_NAME_TAKEN = -3,  // another row of the verb has that name
};

/// Adds a row to the registry of the process, for C++ and PyTorch alike. Returns its number among the rows of
/// its verb, which does not change, or one of the numbers above. Existing plans are not made again: they have
/// the rows of their time. Any thread may call it at any time.
SPARSELOOM_API int sparseloom_register_row(const sparseloom::plan::AnyRow* row);

}  // extern "C"

namespace sparseloom {

/// The decision: immutable, shareable between threads, valid for every operand that the problem describes.
template <class V>
struct PlanOf : Choice {
  typename V::Problem problem;
  typename V::Schedule schedule;
  const Row<V>* chosen = nullptr;

  int launch(const typename V::Args& args, const Executor& executor) const {
    return chosen->launch(args, schedule, executor);
  }
  /// A few lines of text: the problem, the choice and its prediction, and why each other candidate was not
  /// chosen.
  std::string describe() const {
    if constexpr (requires { V::print(problem, schedule); })
      return plan::describe(*this, V::print(problem), V::print(problem, schedule));
    else
      return plan::describe(*this, V::print(problem), V::print(schedule));
  }
};

namespace plan {

/// A row's answer to a problem on its own side: a refusal, or its proposals.
template <Verb V>
Refusal ask(const Row<V>& row, const typename V::Problem& problem, const Machine& machine,
            Proposals<V>& out) {
  if constexpr (requires { V::refuse(row.traits, problem); })
    if (const Refusal why = V::refuse(row.traits, problem)) return why;
  return row.propose(problem, machine, out);
}

}  // namespace plan

namespace plan {

template <Verb V>
AnyRow any_row(const Row<V>& row) {
  AnyRow any;
  any.row_size = sizeof(Row<V>);
  any.problem_size = sizeof(typename V::Problem);
  any.args_size = sizeof(typename V::Args);
  any.schedule_size = sizeof(typename V::Schedule);
  any.verb = V::kName;
  any.typed = &row;
  any.name = row.name;
  any.caveat = row.caveat;
  any.where = row.where;
  any.propose = [](const void* typed, const void* problem, const plan::Machine& machine, plan::Offer& out) {
    Proposals<V> proposals(out);
    return ask(*static_cast<const Row<V>*>(typed), *static_cast<const typename V::Problem*>(problem), machine,
               proposals)
        .text();
  };
  return any;
}

template <Verb V>
AnyProblem any(const typename V::Problem& problem) {
  return {V::kName, &problem,
          [](const void* p) { return V::print(*static_cast<const typename V::Problem*>(p)); }, problem.device,
          problem.strict};
}

template <Verb V>
PlanOf<V> typed(const typename V::Problem& problem, Selected&& selected) {
  PlanOf<V> made;
  static_cast<Choice&>(made) = std::move(selected.choice);
  made.problem = problem;
  std::memcpy(&made.schedule, selected.offer.schedule, sizeof made.schedule);
  made.chosen = static_cast<const Row<V>*>(selected.typed);
  return made;
}

/// The name under which a deterministic plan is kept. No row has it.
inline constexpr std::string_view kDeterministic = "deterministic";

/// The row that a problem on the CPU gets when plans are deterministic: of those without a lent GEMM the
/// fastest for one thread, otherwise `dense`, otherwise none.
template <Verb V>
std::string settled(const typename V::Problem& problem, const Executor& executor) {
  typename V::Problem alone = problem;
  if constexpr (requires { alone.threads, alone.can_gemm; }) alone.threads = 1, alone.can_gemm = false;
  alone.strict = true;  // without `reference`, which would lose to any dense product
  try {
    return select(any<V>(alone), executor, {}).choice.kernel_name;
  } catch (const Error&) {
  }
  if constexpr (requires { problem.can_gemm; })
    if (problem.can_gemm && !problem.strict) {
      try {
        return select(any<V>(problem), executor, "dense").choice.kernel_name;
      } catch (const Error&) {
      }
    }
  return {};
}

/// cached() for plans of type P; `make` returns one by value.
template <class P, class Make>
std::shared_ptr<const P> cached_as(const char* verb, const ProblemKey& key, std::string_view forced,
                                   Make&& make) {
  const auto erased = [](const void* context) -> std::shared_ptr<const void> {
    return std::allocate_shared<const P>(KeptAllocator<P>(),
                                         (*static_cast<const std::remove_cvref_t<Make>*>(context))());
  };
  return std::static_pointer_cast<const P>(cached(verb, key, forced, erased, &make));
}

}  // namespace plan

/// sparseloom_register_row for a row of verb V, which has to live as long as the process. Without a launch or
/// a propose it returns SPARSELOOM_INCOMPLETE.
template <Verb V>
int register_row(const Row<V>& row) {
  if (row.propose == nullptr || row.launch == nullptr) return SPARSELOOM_INCOMPLETE;
  const plan::AnyRow any = plan::any_row(row);
  return sparseloom_register_row(&any);
}

/// Chooses a row for the problem, or returns the cached plan. `forced` names a row (for tests and
/// benchmarks). Throws Error listing every refusal when no row can run.
template <Verb V>
std::shared_ptr<const PlanOf<V>> plan_for(const typename V::Problem& problem, const Executor& executor,
                                          std::string_view forced = {}) {
  const bool settled = is_deterministic() && forced.empty();
  const auto make = [&] {
    const std::string row =
        settled && executor.device < 0 ? plan::settled<V>(problem, executor) : std::string(forced);
    return plan::typed<V>(problem, plan::select(plan::any<V>(problem), executor, row));
  };
  return plan::cached_as<PlanOf<V>>(V::kName, V::key(problem), settled ? plan::kDeterministic : forced, make);
}

}  // namespace sparseloom
