// The rows of the expand kernels: what they refuse, and their predicted time.
#include "kernels/semi24_linear/rows.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/semi24_linear/cpu/ops.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using runtime::Isa;

constexpr const char* kCaveat =
    "the zeros between stored elements are multiplied too, so a NaN or Inf in x spreads to every output of "
    "its "
    "token";

/// Cycles at AVX2's rate of 32 flops: for each column of a row of W, for each of them and a token, and for
/// each output and token. Fitted to one thread on a Zen 4 with W in cache (docs/performance_log.md).
struct Costs {
  double column, token_column, token_output;
};

using OpsOf = const cpu::ExpandOps* (*)(DType);

template <OpsOf kOps>
constexpr Isa kNeeds = kOps == cpu::expand_avx2     ? Isa::avx2
                       : kOps == cpu::expand_avx512 ? Isa::avx512
                                                    : Isa::avx512_bf16 | Isa::avx512_vbmi2;
template <OpsOf kOps>
constexpr Costs kCosts = kOps == cpu::expand_avx2     ? Costs{0.25, 0.15, 4}
                         : kOps == cpu::expand_avx512 ? Costs{0.15, 0.075, 4}
                                                      : Costs{0.08, 0.04, 4};

template <OpsOf kOps>
Refusal refuse(const LinearProblem& p, const plan::Machine& machine) {
  if (!machine.isa.has(kNeeds<kOps>)) {
    if (kOps == cpu::expand_avx512_bf16 && machine.isa.has(Isa::avx512_bf16))
      return "needs avx512_vbmi2 beside avx512_bf16";
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(kNeeds<kOps>),
            runtime::name_of(machine.isa)};
  }
  if (kOps(p.dtype) == nullptr) return {"has no {}", name_of(p.dtype)};
  if (p.direction != Direction::forward) return "does forward only";
  if (p.m > cpu::kExpandTokens) return {"takes at most {} tokens, the call has {}", cpu::kExpandTokens, p.m};
  return {};
}

template <OpsOf kOps>
Semi24Row expand_row(const char* name) {
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<Semi24Linear>& out) -> Refusal {
    if (const Refusal why = refuse<kOps>(p, machine)) return why;
    constexpr double kFlopsPerCycle = 32, kMemoryShareOfCopy = 0.15, kCallUs = 0.5, kForkUs = 4;
    constexpr double kTaskElements = 50e3, kResidentBytes = 16e6;
    const plan::MachineRates& rates = machine.rates;
    const double cycle_us = 1e6 * kFlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
    const Costs& c = kCosts<kOps>;
    const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
                 stored = static_cast<double>(p.stored);
    const double passes = p.m > 8 ? 2 : 1;
    const double compute =
        cycle_us * (2 * stored * (passes * c.column + m * c.token_column) + rows * m * c.token_output);
    // Two elements have four bits of positions.
    const double bytes = stored * (static_cast<double>(size_of(p.dtype)) + 0.25);
    const double memory = kMemoryShareOfCopy * (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
    const double us = std::max(compute, 1e6 * std::max(0.0, bytes - kResidentBytes) / memory);
    const double tasks = std::clamp(stored / kTaskElements, 1.0, static_cast<double>(p.threads));
    out.add({{},
             kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0),
             cpu::expand_workspace(*kOps(p.dtype), p.m, p.cols)});
    return {};
  };
  const auto launch = [](const Semi24Linear::Args& args, const Semi24Linear::Schedule&,
                         const Executor& executor) {
    cpu::run_expand(*kOps(args.product.dtype), args.product, args.view, executor);
    return 0;
  };
  return {name, Placement::cpu, propose, launch, kCaveat};
}

#endif

}  // namespace

std::span<const Semi24Row> semi24_cpu_rows() {
#if defined(__x86_64__)
  static const Semi24Row rows[] = {
      expand_row<cpu::expand_avx512_bf16>("avx512bf16_expand"),
      expand_row<cpu::expand_avx512>("avx512_expand"),
      expand_row<cpu::expand_avx2>("avx2_expand"),
  };
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
